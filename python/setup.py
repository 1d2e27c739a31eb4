"""Puts the library into the package: `make lib` of the checkout this folder is part of, then a copy.

MOTE_LIBRARY=FILE in the environment: that file is copied instead, nothing is built.
"""

import os
import shutil
import subprocess
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.dist import Distribution

HERE = Path(__file__).resolve().parent


class BuildWithLibrary(build_py):
    def run(self):
        super().run()
        if getattr(self, "editable_mode", False):
            return  # the package finds ../build/libmote.so
        given = os.environ.get("MOTE_LIBRARY")
        if not given:
            checkout = HERE.parent
            if not (checkout / "Makefile").exists():
                raise SystemExit("mote: install from a checkout (pip install ./python), or set MOTE_LIBRARY=FILE")
            subprocess.run(["make", "-j%d" % (os.cpu_count() or 1), "lib"], cwd=checkout, check=True)
        library = Path(given) if given else HERE.parent / "build" / "libmote.so"
        shutil.copyfile(library, Path(self.build_lib) / "mote" / "libmote.so")


class WithLibrary(Distribution):
    """The wheel is one machine's: it holds a library."""

    def has_ext_modules(self):
        return True


setup(cmdclass={"build_py": BuildWithLibrary}, distclass=WithLibrary)
