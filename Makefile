# mote: `make` builds, `make demo` installs what is missing, builds and writes a story, `make test` runs the tests.
# Everything goes to $(B); `make SAN=1` is the ASan+UBSan build in its own folder.

CC ?= cc
AR ?= ar
PREFIX ?= /usr/local
VERSION := 0.1.0
DEPS := libjansson-dev libpcre2-dev libutf8proc-dev libedit-dev libcmocka-dev pkg-config gcc make

ifdef SAN
B ?= build-san
SANFLAGS := -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
OPT ?= -O1 -g
else
B ?= build
OPT ?= -O2 -g
endif

LAYERS := base quant file text cpu backend model engine api
LIB_SRC := $(foreach d,$(LAYERS),$(wildcard src/$(d)/*.c))
CLI_SRC := $(wildcard src/cli/*.c)
LIB_OBJ := $(LIB_SRC:%.c=$(B)/%.o)
CLI_OBJ := $(CLI_SRC:%.c=$(B)/%.o)
TEST_SRC := $(wildcard tests/test_*.c)
TEST_SUPPORT := $(filter-out $(TEST_SRC),$(wildcard tests/*.c))
TEST_BIN := $(TEST_SRC:tests/%.c=$(B)/tests/%)
FUZZ_SRC := $(wildcard tests/fuzz/fuzz_*.c)
FUZZ_BIN := $(FUZZ_SRC:tests/fuzz/%.c=$(B)/tests/%)

# The C library's own parts (pthread, math) and the libraries of DESIGN.md section 12.
PKGS := jansson libpcre2-8 libutf8proc
PKG_CFLAGS = $(shell pkg-config --cflags $(PKGS))
PKG_LIBS = $(shell pkg-config --libs $(PKGS)) -lpthread -lm
EDIT_LIBS = $(shell pkg-config --libs libedit)

WARN := -Wall -Wextra -Wpedantic -Werror -Wshadow -Wstrict-prototypes -Wno-missing-field-initializers
# Strict IEEE: no -ffast-math, no contraction; kernels that want FMA say so with intrinsics.
CFLAGS_ALL = -std=c11 $(OPT) $(WARN) -ffp-contract=off -fvisibility=hidden -fPIC -Isrc -Iinclude -DMOTE_VERSION='"$(VERSION)"' $(PKG_CFLAGS) $(SANFLAGS) $(CFLAGS)

# Kernels of an instruction set are compiled for it; nothing else may assume more than the base ISA.
ifneq ($(filter x86_64,$(shell uname -m)),)
$(B)/src/cpu/%_avx2.o: ISA := -mavx2 -mfma -mf16c -mbmi2 -O3
$(B)/src/cpu/%_avx512.o: ISA := -mavx2 -mfma -mf16c -mbmi2 -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mprefer-vector-width=512 -O3
endif

all: $(B)/mote $(B)/libmote.a $(B)/libmote.so

$(B)/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) $(ISA) -MMD -MP -c $< -o $@

$(B)/libmote.a: $(LIB_OBJ)
	@rm -f $@
	$(AR) rcs $@ $^

$(B)/libmote.so: $(LIB_OBJ)
	$(CC) -shared -Wl,-soname,libmote.so.0 -Wl,--no-undefined $(SANFLAGS) $^ $(PKG_LIBS) -o $@

$(B)/mote: $(CLI_OBJ) $(B)/libmote.a
	$(CC) $(SANFLAGS) $^ $(PKG_LIBS) $(EDIT_LIBS) -o $@

$(B)/tests/%: $(B)/tests/%.o $(TEST_SUPPORT:%.c=$(B)/%.o) $(B)/libmote.a
	@mkdir -p $(@D)
	$(CC) $(SANFLAGS) $^ $(PKG_LIBS) -lcmocka -o $@

$(B)/tests/fuzz_%: $(B)/tests/fuzz/fuzz_%.o $(B)/tests/fuzz/replay.o $(B)/libmote.a
	@mkdir -p $(@D)
	$(CC) $(SANFLAGS) $^ $(PKG_LIBS) -o $@

tests: $(TEST_BIN) $(FUZZ_BIN)

clean:
	rm -rf build build-*

-include $(shell find $(B) -name '*.d' 2>/dev/null)
.SECONDARY:
.PHONY: all tests clean
