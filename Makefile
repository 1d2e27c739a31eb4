# mote: `make` builds, `make demo` installs what is missing, builds and writes a story, `make test` runs the tests.
# Everything goes to $(B); `make SAN=1` is the ASan+UBSan build in its own folder.

CC ?= cc
AR ?= ar
PREFIX ?= /usr/local
VERSION := 0.1.0
DEPS := gcc g++ make binutils pkg-config libc6-dev libjansson-dev libpcre2-dev libutf8proc-dev libedit-dev libcmocka-dev clang-format

ifdef SAN
B ?= build-san
SANFLAGS := -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
OPT ?= -O1 -g
KERNEL_OPT := # -O3 under the sanitizers takes gcc ten minutes a file
else
B ?= build
OPT ?= -O2 -g
KERNEL_OPT := -O3
endif

LAYERS := base quant file text cpu cuda backend model engine api
LIB_SRC := $(foreach d,$(LAYERS),$(wildcard src/$(d)/*.c))
CLI_SRC := $(wildcard src/cli/*.c)
# The sanitizer build takes the kernels of an instruction set from the plain build: instrumented, their unrolled texts
# take minutes to compile. What they read and write is held in by guard pages and poisoned borders (test_matmul).
ISA_SRC := $(filter %_avx2.c %_avx512.c,$(LIB_SRC))
PLAIN := $(if $(SAN),build,$(B))
LIB_OBJ := $(patsubst %.c,$(B)/%.o,$(filter-out $(ISA_SRC),$(LIB_SRC))) $(ISA_SRC:%.c=$(PLAIN)/%.o)
# Device code travels inside the library as text (cuda/kernel_text.h) and is compiled where it runs.
KERNEL_TEXT := $(if $(filter cuda,$(LAYERS)),$(sort $(wildcard src/cuda/kernels/*.cu src/cuda/kernels/*.cuh)) $(wildcard src/cuda/layout.h src/cuda/step.h))
LIB_OBJ += $(if $(filter cuda,$(LAYERS)),$(B)/src/cuda/kernel_text_data.o)
CLI_OBJ := $(CLI_SRC:%.c=$(B)/%.o)
TEST_SRC := $(wildcard tests/test_*.c tests/test_*.cc)
TEST_SUPPORT := $(filter-out $(TEST_SRC) tests/bench_%,$(wildcard tests/*.c))
TEST_BIN := $(patsubst %,$(B)/%,$(basename $(TEST_SRC)))
CUDA_BIN := $(filter $(B)/tests/test_cuda_%,$(TEST_BIN))
EXAMPLE_BIN := $(patsubst %.c,$(B)/%,$(wildcard examples/*.c))
FUZZ_SRC := $(wildcard tests/fuzz/fuzz_*.c)
FUZZ_BIN := $(FUZZ_SRC:tests/fuzz/%.c=$(B)/tests/%)

# The C library's own parts (pthread, math) and the libraries of DESIGN.md section 12.
PKGS := jansson libpcre2-8 libutf8proc
PKG_CFLAGS = $(shell pkg-config --cflags $(PKGS))
PKG_LIBS = $(shell pkg-config --libs $(PKGS)) -lpthread -lm
EDIT_LIBS = $(shell pkg-config --libs libedit)

WARN := -Wall -Wextra -Wpedantic -Werror -Wshadow -Wstrict-prototypes -Wno-missing-field-initializers -Wno-psabi
# Strict IEEE: no -ffast-math, no contraction; kernels that want FMA say so with intrinsics.
CFLAGS_ALL = -std=c11 $(OPT) $(WARN) -ffp-contract=off -fvisibility=hidden -fPIC -Isrc -Iinclude -DMOTE_VERSION='"$(VERSION)"' $(PKG_CFLAGS) $(SANFLAGS) $(CFLAGS)

# Kernels of an instruction set are compiled for it; nothing else may assume more than the base ISA.
ifneq ($(filter x86_64,$(shell uname -m)),)
$(B)/src/cpu/%_avx2.o $(B)/src/quant/%_avx2.o: ISA := -mavx2 -mfma -mf16c -mbmi2 $(KERNEL_OPT)
$(B)/src/cpu/%_avx512.o: ISA := -mavx2 -mfma -mf16c -mbmi2 -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mprefer-vector-width=512 $(KERNEL_OPT)
endif

all: $(B)/mote lib $(EXAMPLE_BIN)
lib: $(B)/libmote.a $(B)/libmote.so

# The plain build says whether they are up to date.
ifdef SAN
.PHONY: FORCE
$(ISA_SRC:%.c=$(PLAIN)/%.o): FORCE
	@$(MAKE) --no-print-directory SAN= B=$(PLAIN) OPT="-O2 -g" SANFLAGS= $@
endif

# V=1 shows whole command lines.
Q := $(if $(V),,@)
say = $(if $(V),,@echo '  $(1) $@')

$(B)/%.o: %.c
	@mkdir -p $(@D)
	$(call say,cc)
	$(Q)$(CC) $(CFLAGS_ALL) $(ISA) -MMD -MP -c $< -o $@

# Tests of device text that is also C++: hundreds of instances, so nothing is optimised; `#pragma unroll` is not for the host.
$(B)/tests/%.o: tests/%.cc
	@mkdir -p $(@D)
	$(call say,c++)
	$(Q)$(CXX) -std=c++17 -O0 -g -fno-exceptions -fno-rtti -ffp-contract=off -Wall -Wextra -Wpedantic -Werror -Wno-unknown-pragmas -Isrc -Isrc/cuda -Iinclude $(SANFLAGS) -MMD -MP -c $< -o $@

# A C array of the kernel texts: every line a string literal. The folder is named too: it changes when a text goes.
$(B)/src/cuda/kernel_text_data.c: $(KERNEL_TEXT) src/cuda/kernels tools/embed.sh
	@mkdir -p $(@D)
	$(call say,embed)
	$(Q)tools/embed.sh $(KERNEL_TEXT) >$@.new && mv $@.new $@

# ISO C promises 4095 characters in a literal; gcc and clang have no such limit.
$(B)/src/cuda/kernel_text_data.o: $(B)/src/cuda/kernel_text_data.c
	$(call say,cc)
	$(Q)$(CC) $(CFLAGS_ALL) -Wno-overlength-strings -MMD -MP -c $< -o $@

$(B)/libmote.a: $(LIB_OBJ)
	@rm -f $@
	$(call say,ar)
	$(Q)$(AR) rcs $@ $^

$(B)/libmote.so: $(LIB_OBJ)
	$(call say,ld)
	$(Q)$(CC) -shared -Wl,-soname,libmote.so.0 -Wl,--no-undefined $(SANFLAGS) $^ $(PKG_LIBS) -o $@

$(B)/mote: $(CLI_OBJ) $(B)/libmote.a
	$(call say,ld)
	$(Q)$(CC) $(SANFLAGS) $^ $(PKG_LIBS) $(EDIT_LIBS) -o $@

$(B)/tests/%: $(B)/tests/%.o $(TEST_SUPPORT:%.c=$(B)/%.o) $(B)/libmote.a
	@mkdir -p $(@D)
	$(call say,ld)
	$(Q)$(CC) $(SANFLAGS) $^ $(PKG_LIBS) -lcmocka -o $@

# Examples see the public headers alone.
$(B)/examples/%: examples/%.c $(B)/libmote.a
	@mkdir -p $(@D)
	$(call say,ld)
	$(Q)$(CC) -std=c11 $(OPT) $(WARN) $(SANFLAGS) -Iinclude $< $(B)/libmote.a $(PKG_LIBS) -o $@

# A driver for tests.
$(B)/tests/libcuda_fake.so: tests/fake/libcuda.c tests/fake/libcuda.h
	@mkdir -p $(@D)
	$(call say,ld)
	$(Q)$(CC) $(CFLAGS_ALL) -fvisibility=default -shared $< -o $@
$(B)/tests/test_cuda_device $(B)/tests/test_kernels_driver: | $(B)/tests/libcuda_fake.so

$(B)/tests/fuzz_%: $(B)/tests/fuzz/fuzz_%.o $(B)/tests/fuzz/replay.o $(B)/libmote.a
	@mkdir -p $(@D)
	$(call say,ld)
	$(Q)$(CC) $(SANFLAGS) $^ $(PKG_LIBS) -o $@

$(B)/bench_%: $(B)/tests/bench_%.o $(B)/libmote.a
	$(call say,ld)
	$(Q)$(CC) $(SANFLAGS) $^ $(PKG_LIBS) -o $@

tests: $(TEST_BIN) $(FUZZ_BIN) $(EXAMPLE_BIN)

# ---- installing what is missing (Debian) ----
# A package is missing when dpkg does not know it as installed; root or sudo installs, anyone else is told what to do.
deps:
	@missing=; for p in $(DEPS); do dpkg-query -W -f='$${Status}' $$p 2>/dev/null | grep -q 'ok installed' || missing="$$missing $$p"; done; \
	[ -z "$$missing" ] && exit 0; \
	if ! command -v apt-get >/dev/null; then echo "please install:$$missing" >&2; exit 1; fi; \
	sudo=; [ "$$(id -u)" = 0 ] || sudo=sudo; \
	echo "installing:$$missing"; \
	$$sudo apt-get update -qq && DEBIAN_FRONTEND=noninteractive $$sudo apt-get install -y -qq --no-install-recommends $$missing >/dev/null

# The sub-make starts after deps, so that pkg-config finds what was just installed.
demo: deps
	@$(MAKE) --no-print-directory -j$$(nproc) $(B)/mote
	@$(B)/mote run -m models/fable-tq1_0.gguf -n 200 --temp 0.7 --top-p 0.9 --seed 7 \
	    --chat -p "Tell me the story of the clever fox."

test: deps
	@$(MAKE) --no-print-directory -j$$(nproc) all tests
	@$(MAKE) --no-print-directory -j$$(nproc) SAN=1 B=build-san tests
	@tests/run_all.sh build build-san

# On a machine with a CUDA device; MOTE_CUDA_MODELS and MOTE_CUDA_GOLDEN (tests/test_cuda_model.c, test_cuda_formats.c) name more models.
test-cuda:
	@$(MAKE) --no-print-directory -j$$(nproc) all $(CUDA_BIN)
	@tests/run_cuda.sh $(B)

# The Python module, in a Python that has torch, numpy and pytest: PYTHON=... names it. Exit 77: there is none.
PYTHON ?= python3
test-python: lib
	@tests/run_python.sh $(PYTHON) $(B)/libmote.so

install: all
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/lib/pkgconfig $(DESTDIR)$(PREFIX)/include/mote
	install -m 755 $(B)/mote $(DESTDIR)$(PREFIX)/bin/mote
	install -m 644 $(B)/libmote.a $(DESTDIR)$(PREFIX)/lib/libmote.a
	install -m 755 $(B)/libmote.so $(DESTDIR)$(PREFIX)/lib/libmote.so.$(VERSION)
	ln -sf libmote.so.$(VERSION) $(DESTDIR)$(PREFIX)/lib/libmote.so.0
	ln -sf libmote.so.0 $(DESTDIR)$(PREFIX)/lib/libmote.so
	install -m 644 include/mote.h $(DESTDIR)$(PREFIX)/include/
	install -m 644 include/mote/*.h $(DESTDIR)$(PREFIX)/include/mote/
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@VERSION@|$(VERSION)|' tools/mote.pc.in > $(DESTDIR)$(PREFIX)/lib/pkgconfig/mote.pc

format:
	find src include tests examples \( -name '*.c' -o -name '*.h' \) ! -path src/quant/iq_grid.c | xargs clang-format -i

clean:
	rm -rf build build-*

-include $(shell find $(B) -name '*.d' 2>/dev/null)
.SECONDARY:
.PHONY: all lib tests deps demo test test-cuda test-python install format clean
