/* test_cuda_kernels.c: what of CUDA can be tested without a device: the driver's absence is a clear message, the kernel
 * cache (hits, damage, other compilers, unwritable folders), compiler errors, what experts without a gate ask for; and every unit of cuda/unit_list compiled for
 * every architecture, without spills where it is hot, with the registers and shared memory of
 * tests/golden/kernel_usage.txt (MOTE_KERNEL_USAGE=rewrite writes that table). */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "backend/backend.h"
#include "base/log.h"
#include "cuda/compile.h"
#include "cuda/pack.h"
#include "cuda/unit_list.h"
#include "quant/decode.h"

static char cache[] = "/tmp/mote-cache-XXXXXX";

static void need_nvrtc(void)
{
    int version;
    if (mote_cuda_nvrtc(&version) == MOTE_OK) return;
    print_message("%s\n", mote_error());
    skip();
}

static void assert_says(const char *text)
{
    if (!strstr(mote_error(), text)) fail_msg("'%s' is not in: %s", text, mote_error());
}

/* ---- no device ---- */

static void test_no_device(void **state)
{
    (void)state;
    int n = -1;
    if (mote_cuda_count(&n) == MOTE_OK && n > 0) skip();
    assert_int_equal(n, 0);
    struct mote_cuda_info info;
    struct mote_cuda *cuda = (struct mote_cuda *)&n;
    mote_status status = mote_cuda_open(0, &cuda);
    assert_null(cuda);
    assert_true(status == MOTE_DEVICE ||
                status == MOTE_ARGUMENT); /* no driver, or a driver with no devices */
    assert_says(status == MOTE_DEVICE ? "CUDA: " : "device 0: there are 0");
    assert_int_equal(mote_cuda_describe(0, &info), status);
    mote_cuda_close(NULL);
}

/* ---- cache ---- */

static const struct mote_cuda_unit bandwidth = {"bandwidth.cu", ""};

/* The folder's one entry: its path. */
static void only_entry(char path[512])
{
    char command[512];
    snprintf(command, sizeof command, "ls %s/kernels/*", cache);
    FILE *list = popen(command, "r");
    assert_non_null(list);
    assert_non_null(fgets(path, 512, list));
    path[strcspn(path, "\n")] = 0;
    char more[512];
    assert_null(fgets(more, sizeof more, list));
    pclose(list);
}

static void empty_cache(void)
{
    char command[512];
    snprintf(command, sizeof command, "rm -rf %s/kernels", cache);
    assert_int_equal(system(command), 0);
}

static void make(struct mote_cubin *out, int cached)
{
    mote_status status = mote_cubin_make("sm_90a", &bandwidth, out);
    if (status != MOTE_OK) fail_msg("%s", mote_error());
    assert_int_equal(out->cached, cached);
    assert_memory_equal(out->image, "\177ELF", 4);
    assert_int_equal(out->n_usage, 1);
    assert_string_equal(out->usage[0].name, "read_memory");
    assert_in_range(out->usage[0].registers, 20, 64);
}

static void test_cache(void **state)
{
    (void)state;
    need_nvrtc();
    empty_cache();
    struct mote_cubin first, again;
    make(&first, 0);
    make(&again, 1);
    assert_int_equal(again.memory_size, first.memory_size);
    assert_memory_equal(again.memory, first.memory, first.memory_size);
    mote_cubin_free(&again);

    /* A byte of magic, key, the compiler's number, counts, hash, report, image; then cut short, lengthened, emptied. */
    char path[512];
    only_entry(path);
    const long size = (long)first.memory_size;
    const long damage[] = {0, 9, 24, 28, 33, 41, 70, size / 2, size - 1, -1, -2, -3, -4};
    for (size_t i = 0; i < sizeof damage / sizeof *damage; i++) {
        FILE *file = fopen(path, damage[i] == -2 ? "ab" : "r+b");
        assert_non_null(file);
        if (damage[i] >= 0) {
            fseek(file, damage[i], SEEK_SET);
            fputc(((const uint8_t *)first.memory)[damage[i]] ^ 0x41, file);
        }
        if (damage[i] == -1) assert_int_equal(ftruncate(fileno(file), size - 1), 0);
        if (damage[i] == -2) fputc(0, file);
        if (damage[i] == -3) assert_int_equal(ftruncate(fileno(file), 63), 0);
        if (damage[i] == -4) assert_int_equal(ftruncate(fileno(file), 0), 0);
        fclose(file);
        make(&again, 0);
        assert_int_equal(again.memory_size, first.memory_size);
        mote_cubin_free(&again);
        make(&again, 1); /* it was written anew */
        mote_cubin_free(&again);
    }
    only_entry(path); /* nothing else was left behind */
    uint64_t bytes, n;
    assert_int_equal(mote_cache_size(&bytes, &n), MOTE_OK);
    assert_int_equal(bytes, size);
    assert_int_equal(n, 1);

    /* Other constants, other options, another architecture: other entries. */
    struct mote_cuda_unit other = {"bandwidth.cu", " A=1  B=x,y "};
    assert_int_equal(mote_cubin_make("sm_90a", &other, &again), MOTE_OK);
    assert_false(again.cached);
    mote_cubin_free(&again);
    assert_int_equal(mote_cubin_make("sm_80", &bandwidth, &again), MOTE_OK);
    assert_false(again.cached);
    mote_cubin_free(&again);
    setenv("MOTE_LINEINFO", "1", 1);
    assert_int_equal(mote_cubin_make("sm_90a", &bandwidth, &again), MOTE_OK);
    unsetenv("MOTE_LINEINFO");
    assert_false(again.cached);
    assert_true(again.image_size > first.image_size);
    mote_cubin_free(&again);
    assert_int_equal(mote_cache_size(&bytes, &n), MOTE_OK);
    assert_int_equal(n, 4);

    /* The call for those without a device gives the same. */
    void *cubin;
    size_t cubin_size, n_usage;
    struct mote_cuda_usage usage[4];
    assert_int_equal(mote_cuda_build("sm_90a", &bandwidth, &cubin, &cubin_size, usage, 4, &n_usage), MOTE_OK);
    assert_int_equal(cubin_size, first.image_size);
    assert_memory_equal(cubin, first.image, cubin_size);
    assert_int_equal(n_usage, 1);
    assert_memory_equal(usage, first.usage, sizeof usage[0]);
    mote_mem_free(cubin);
    mote_cubin_free(&first);
    empty_cache();
}

static void count_warning(void *context, int level, const char *message)
{
    if (level == MOTE_LOG_WARNING && strstr(message, "kernel cache")) ++*(int *)context;
}

static void test_unwritable(void **state)
{
    (void)state;
    need_nvrtc();
    int warnings = 0;
    mote_log_set(count_warning, &warnings);
    setenv("MOTE_CACHE", "/dev/null/no/folder", 1);
    struct mote_cubin cubin;
    for (int i = 0; i < 2; i++) {
        make(&cubin, 0);
        mote_cubin_free(&cubin);
        assert_int_equal(warnings, 1); /* said once, not for every unit */
    }
    setenv("MOTE_CACHE", cache, 1);
    mote_log_set(NULL, NULL);
}

/* ---- errors ---- */

struct told {
    size_t calls, done, total;
};

static void tell(void *context, size_t done, size_t total, size_t cached)
{
    struct told *told = context;
    assert_true(done >= told->done && cached <= done);
    told->calls++;
    told->done = done;
    told->total = total;
}

static void test_errors(void **state)
{
    (void)state;
    need_nvrtc();
    struct mote_cubin cubin[3];
    struct mote_cuda_unit unit[3] = {bandwidth, {"bandwidth.cu", "uint4=1"}, bandwidth};
    assert_int_equal(mote_cubin_make("sm_90a", &unit[1], cubin), MOTE_DEVICE);
    assert_says("bandwidth.cu for sm_90a (uint4=1)");
    assert_says("error");
    assert_null(cubin[0].memory);
    struct told told = {0};
    assert_int_equal(mote_cubin_make_all("sm_90a", unit, 3, cubin, tell, &told), MOTE_DEVICE);
    assert_says("uint4=1");
    for (int i = 0; i < 3; i++) assert_null(cubin[i].memory);
    unit[1] = (struct mote_cuda_unit){"bandwidth.cu", "A=1"};
    told = (struct told){0};
    assert_int_equal(mote_cubin_make_all("sm_90a", unit, 3, cubin, tell, &told), MOTE_OK);
    assert_int_equal(told.done, 3);
    assert_int_equal(told.total, 3);
    for (int i = 0; i < 3; i++) mote_cubin_free(&cubin[i]);
    assert_int_equal(mote_cubin_make("sm_11", &bandwidth, cubin), MOTE_DEVICE);
    assert_says("sm_11");
    assert_int_equal(mote_cubin_make("sm_90a/../x", &bandwidth, cubin), MOTE_ARGUMENT);
    assert_says("sm_90a/../x");
    struct mote_cuda_unit none = {"none.cu", ""};
    assert_int_equal(mote_cubin_make("sm_90a", &none, cubin), MOTE_INTERNAL);
    assert_says("none.cu");
}

/* ---- every unit ---- */

static const char golden[] = "tests/golden/kernel_usage.txt";

struct row {
    char arch[16], text[32], what[32], kernel[96];
    int registers, shared, spill, stack;
};
struct table {
    struct row *row; /* malloc'ed */
    size_t n, room;
    int nvrtc;
};

static struct row *add_row(struct table *table)
{
    if (table->n == table->room) {
        table->room = 2 * table->room + 64;
        table->row = realloc(table->row, table->room * sizeof *table->row);
        assert_non_null(table->row);
    }
    return &table->row[table->n++];
}

static void read_golden(struct table *table)
{
    FILE *file = fopen(golden, "r");
    assert_non_null(file);
    char line[512];
    while (fgets(line, sizeof line, file)) {
        struct row row;
        if (sscanf(line, "nvrtc %d", &table->nvrtc) == 1 || line[0] == '#') continue;
        assert_int_equal(sscanf(line, "%15s %31s %31s %95s %d %d %d %d", row.arch, row.text, row.what,
                                row.kernel, &row.registers, &row.shared, &row.spill, &row.stack),
                         8);
        *add_row(table) = row;
    }
    fclose(file);
}

static void write_golden(const struct table *table)
{
    FILE *file = fopen(golden, "w");
    assert_non_null(file);
    fprintf(file, "# Made by MOTE_KERNEL_USAGE=rewrite build/tests/test_cuda_kernels.\n"
                  "# arch text for kernel registers shared spill stack\n");
    fprintf(file, "nvrtc %d\n", table->nvrtc);
    for (size_t i = 0; i < table->n; i++) {
        const struct row *row = &table->row[i];
        fprintf(file, "%s %s %s %s %d %d %d %d\n", row->arch, row->text, row->what, row->kernel,
                row->registers, row->shared, row->spill, row->stack);
    }
    assert_int_equal(fclose(file), 0);
}

/* Kernels that may put away a few values: room for more warps is worth it. In the disassembly for sm_90a they lie between the
 * tiles that a warp goes through (AFFINE4 has one load a unit in gate_up_many), in the MXFP4 kernels between items; elsewhere they were only counted. */
static int spill_allowed(const char *kernel)
{
    static const struct {
        const char *kernel;
        int bytes;
    } allowed[] = {{"gate_up_many", 216},       {"down_many", 32},          {"prefill_linear_128", 32},
                   {"prefill_gate_up_128", 32}, {"prefill_gate_up_64", 48}, {"prefill_down_64", 48},
                   {"mx_narrow_gate_up", 96},   {"mx_wide_gate_up", 16},    {"down_one", 16}};
    for (size_t i = 0; i < sizeof allowed / sizeof *allowed; i++)
        if (!strcmp(kernel, allowed[i].kernel)) return allowed[i].bytes;
    return 0;
}

/* Compile for an architecture, all units for it or the first of every text, and note what the kernels use. */
static int compile_list(const char *arch, int all, struct table *out)
{
    struct mote_cuda_unit unit[512] = {{0}};
    const struct mote_cuda_unit_row *listed[512], *list = mote_cuda_unit_list;
    struct mote_cubin cubin[512];
    size_t n = 0;
    for (size_t i = 0; list[i].unit.text; i++) {
        if (!all && i && !strcmp(list[i].unit.text, list[i - 1].unit.text)) continue;
        if (!mote_cuda_unit_is_for(&list[i], arch)) continue;
        assert_true(n < 512);
        listed[n] = &list[i];
        unit[n++] = list[i].unit;
    }
    if (mote_cubin_make_all(arch, unit, n, cubin, NULL, NULL) != MOTE_OK) fail_msg("%s", mote_error());
    int bad = 0;
    for (size_t i = 0; i < n; i++) {
        for (size_t k = 0; k < cubin[i].n_usage; k++) {
            const struct mote_cuda_usage *usage = &cubin[i].usage[k];
            struct row *row = add_row(out);
            memset(row, 0, sizeof *row);
            snprintf(row->arch, sizeof row->arch, "%s", arch);
            snprintf(row->text, sizeof row->text, "%s", listed[i]->unit.text);
            snprintf(row->what, sizeof row->what, "%s", listed[i]->what);
            memcpy(row->kernel, usage->name, sizeof row->kernel);
            row->registers = usage->registers;
            row->shared = usage->shared_bytes;
            row->spill = usage->spill_bytes;
            row->stack = usage->stack_bytes;
            if (!listed[i]->hot || usage->spill_bytes <= spill_allowed(usage->name)) continue;
            print_message("%s %s %s %s spills %d bytes\n", arch, row->text, row->what, row->kernel,
                          row->spill);
            bad++;
        }
        mote_cubin_free(&cubin[i]);
    }
    return bad;
}

/* Compilers schedule a little differently after any change: what counts is that occupancy does not slip unseen. */
static int differs(const struct row *a, const struct row *b)
{
    int registers = abs(a->registers - b->registers), shared = abs(a->shared - b->shared);
    return registers > 8 || shared > 64 + b->shared / 16 || a->spill > b->spill + 16 ||
           a->stack > b->stack + 32;
}

static int compare(const struct table *found, const struct table *wanted)
{
    int bad = 0;
    for (size_t i = 0; i < found->n; i++) {
        const struct row *a = &found->row[i], *b = NULL;
        for (size_t k = 0; k < wanted->n && !b; k++) {
            const struct row *w = &wanted->row[k];
            if (!strcmp(a->arch, w->arch) && !strcmp(a->text, w->text) && !strcmp(a->what, w->what) &&
                !strcmp(a->kernel, w->kernel))
                b = w;
        }
        if (b && !differs(a, b)) continue;
        bad++;
        print_message("%s %s %s %s: %d registers, %d shared, %d spilled, %d stack; the table has ", a->arch,
                      a->text, a->what, a->kernel, a->registers, a->shared, a->spill, a->stack);
        if (b) print_message("%d, %d, %d, %d\n", b->registers, b->shared, b->spill, b->stack);
        else print_message("no such row\n");
    }
    return bad;
}

static void test_usage(void **state)
{
    (void)state;
    need_nvrtc();
    static const char *const archs[] = {"sm_90a", "sm_80", "sm_120"};
    const char *rewrite = getenv("MOTE_KERNEL_USAGE");
    if (getenv("MOTE_TEST_SHORT")) {
        print_message("short run: nothing of ours is instrumented inside the compiler\n");
        skip();
    }
    struct table found = {0}, wanted = {0};
    assert_int_equal(mote_cuda_nvrtc(&found.nvrtc), MOTE_OK);
    int spilling = 0, other = 0;
    for (int i = 0; i < 3; i++) spilling += compile_list(archs[i], i == 0, &found);
    if (rewrite && !strcmp(rewrite, "rewrite")) write_golden(&found);
    read_golden(&wanted);
    if (wanted.nvrtc == found.nvrtc) other = compare(&found, &wanted);
    else
        print_message("%s was made with NVRTC %d, this is %d: not compared\n", golden, wanted.nvrtc,
                      found.nvrtc);
    free(found.row);
    free(wanted.row);
    assert_int_equal(spilling, 0);
    assert_int_equal(other, 0);
}

/* ---- backends of no device ---- */

/* What they are created for: a small model's. */
static const struct mote_backend_limits small = {.max_row = 4,
                                                 .max_col = 256,
                                                 .d_model = 256,
                                                 .n_ff = 96,
                                                 .n_expert = 8,
                                                 .n_used = 2,
                                                 .n_head = 4,
                                                 .n_head_kv = 4,
                                                 .head_dim = 64,
                                                 .n_rot = 64};

/* ---- experts without a gate ---- */

/* Bytes of what is there alone; programs that have up's kind where a gate's would be, and compile. */
static void test_ungated(void **state)
{
    (void)state;
    struct mote_matrix up = mote_matrix_view(MOTE_FORMAT_Q4_K, NULL, 96, 256),
                       down = mote_matrix_view(MOTE_FORMAT_Q8_0, NULL, 256, 96);
    struct mote_expert_set set = {.name = "exps",
                                  .n_expert = 1,
                                  .n_ff = 96,
                                  .d_model = 256,
                                  .activation = {.kind = MOTE_ACTIVATION_RELU2},
                                  .up = &up,
                                  .down = &down},
                           gated = set;
    gated.activation = (struct mote_activation){MOTE_ACTIVATION_SWIGLU_OAI, 7};
    gated.gate = &up;
    struct mote_backend_options options = {0};
    struct mote_tile_kind kind;
    size_t bytes, more;
    assert_int_equal(mote_backend_cuda.expert_bytes(&options, &set, &bytes), MOTE_OK);
    assert_int_equal(mote_backend_cuda.expert_bytes(&options, &gated, &more), MOTE_OK);
    assert_int_equal(mote_tile_kind_of(&up, 0, &kind), MOTE_OK);
    assert_int_equal(more - bytes, mote_tile_matrix_bytes(&kind, 96, 256));

    struct mote_backend *ahead;
    assert_int_equal(mote_cuda_ahead_create("sm_90a", &small, NULL, &ahead), MOTE_OK);
    set.gate = &up;
    assert_int_equal(ahead->ops->place_experts(ahead, &set), MOTE_ARGUMENT);
    assert_says("exps: activation relu2, experts with a gate");
    set.gate = NULL;
    if (ahead->ops->place_experts(ahead, &set) != MOTE_OK) fail_msg("%s", mote_error());
    if (ahead->ops->place_experts(ahead, &gated) != MOTE_OK) fail_msg("%s", mote_error());
    struct mote_cuda_unit unit[32];
    size_t n = mote_cuda_ahead_units(ahead, unit, 32);
    char text[MOTE_TILE_TEXT], names[2][2 * MOTE_TILE_TEXT + 32];
    mote_tile_kind_text(&kind, text);
    snprintf(names[0], sizeof names[0], "GATE=%s UP=%s ", text, text);
    snprintf(names[1], sizeof names[1], "W0=%s W1=%s ", text, text);
    int n_relu2 = 0, n_oai = 0, has_nvrtc = mote_cuda_nvrtc(&n_oai) == MOTE_OK;
    n_oai = 0;
    for (size_t i = 0; i < n && i < 32; i++) {
        int is_relu2 = strstr(unit[i].define, " ACTIVATION=4 LIMIT=0.00000000f") != NULL,
            is_oai = strstr(unit[i].define, " ACTIVATION=3 LIMIT=7.00000000f") != NULL;
        n_relu2 += is_relu2, n_oai += is_oai;
        if (!is_relu2 && !is_oai) continue;
        assert_non_null(strstr(unit[i].define, names[strcmp(unit[i].text, "moe_decode.cu") != 0]));
        struct mote_cubin cubin;
        if (!has_nvrtc || getenv("MOTE_TEST_SHORT")) continue;
        if (mote_cubin_make("sm_90a", &unit[i], &cubin) != MOTE_OK) fail_msg("%s", mote_error());
        mote_cubin_free(&cubin);
    }
    assert_int_equal(n_relu2, 2);
    assert_int_equal(n_oai, 2);
    ahead->ops->unplace(ahead, set.placed);
    ahead->ops->unplace(ahead, gated.placed);
    ahead->ops->destroy(ahead);
}

/* ---- routers ---- */

/* A program for every routing and kind of router weights, whatever layers share them. */
static void test_routers(void **state)
{
    (void)state;
    const struct mote_routing two = {.n_expert = 8, .n_used = 2, .n_group = 1, .n_group_used = 1, .scale = 1};
    struct mote_routing scaled = two, three = two;
    scaled.scale = 2.5f, three.n_used = 3;
    struct mote_weight plain = {.name = "plain", .w = mote_matrix_view(MOTE_FORMAT_F32, NULL, 8, 256)},
                       half = {.name = "half", .w = mote_matrix_view(MOTE_FORMAT_F16, NULL, 8, 256)},
                       tiled = {.name = "tiled", .w = mote_matrix_view(MOTE_FORMAT_Q8_0, NULL, 8, 256)};
    struct mote_backend *ahead;
    assert_int_equal(mote_cuda_ahead_create("sm_90a", &small, NULL, &ahead), MOTE_OK);
    struct mote_weight *weight[] = {&plain, &half, &tiled};
    for (int i = 0; i < 3; i++) assert_int_equal(ahead->ops->place(ahead, weight[i]), MOTE_OK);
    const struct {
        const struct mote_routing *routing;
        const struct mote_weight *router;
        size_t n_new; /* units */
    } placed[] = {{&two, NULL, 1},      {&two, &tiled, 0}, {&two, &plain, 1},   {&two, &plain, 0},
                  {&scaled, &plain, 0}, {&two, &half, 1},  {&three, &tiled, 1}, {&three, &plain, 1}};
    size_t n = mote_cuda_ahead_units(ahead, NULL, 0);
    for (size_t i = 0; i < sizeof placed / sizeof *placed; i++) {
        assert_int_equal(ahead->ops->place_routing(ahead, placed[i].routing, placed[i].router), MOTE_OK);
        n += placed[i].n_new;
        assert_int_equal(mote_cuda_ahead_units(ahead, NULL, 0), n);
    }
    for (int i = 0; i < 3; i++) ahead->ops->unplace(ahead, weight[i]->placed);
    ahead->ops->destroy(ahead);
}

/* The kernels of experts know who chooses among them: of the same experts another program for every choice, scale aside. */
static void test_choosers(void **state)
{
    (void)state;
    struct mote_matrix wide[8], down[8];
    for (int e = 0; e < 8; e++) {
        wide[e] = mote_matrix_view(MOTE_FORMAT_Q8_0, NULL, 96, 256);
        down[e] = mote_matrix_view(MOTE_FORMAT_Q8_0, NULL, 256, 96);
    }
    struct mote_routing two = {.n_expert = 8, .n_used = 2, .n_group = 1, .n_group_used = 1, .scale = 1},
                        scaled = two, three = two, many = two;
    scaled.scale = 2.5f, three.n_used = 3, three.renormalise = 1, many.n_expert = 9;
    const struct {
        const struct mote_routing *routing;
        const char *define; /* of a new unit */
    } placed[] = {{NULL, " N_EXPERT=0 N_USED=0 SCORE=0 N_GROUP=1 N_GROUP_USED=1 RENORMALISE=0"},
                  {&two, " N_EXPERT=8 N_USED=2 SCORE=0 N_GROUP=1 N_GROUP_USED=1 RENORMALISE=0"},
                  {&scaled, NULL},
                  {&three, " N_EXPERT=8 N_USED=3 SCORE=0 N_GROUP=1 N_GROUP_USED=1 RENORMALISE=1"},
                  {NULL, NULL}};
    struct mote_backend *ahead;
    assert_int_equal(mote_cuda_ahead_create("sm_90a", &small, NULL, &ahead), MOTE_OK);
    struct mote_expert_set set = {
        .name = "exps", .n_expert = 8, .n_ff = 96, .d_model = 256, .gate = wide, .up = wide, .down = down};
    set.routing = &many;
    assert_int_equal(ahead->ops->place_experts(ahead, &set), MOTE_ARGUMENT);
    assert_says("exps: 8 experts, but its router chooses among 9");
    struct mote_cuda_unit unit[32];
    int n_decode = 0;
    for (size_t i = 0; i < sizeof placed / sizeof *placed; i++) {
        set.routing = placed[i].routing;
        if (ahead->ops->place_experts(ahead, &set) != MOTE_OK) fail_msg("%s", mote_error());
        ahead->ops->unplace(ahead, set.placed);
        size_t n = mote_cuda_ahead_units(ahead, unit, 32);
        int now = 0, is_there = 0;
        for (size_t u = 0; u < n && u < 32; u++) {
            now += !strcmp(unit[u].text, "moe_decode.cu");
            is_there |= placed[i].define && strstr(unit[u].define, placed[i].define) != NULL;
        }
        assert_int_equal(now, n_decode + (placed[i].define != NULL));
        assert_int_equal(is_there, placed[i].define != NULL);
        n_decode = now;
    }
    ahead->ops->destroy(ahead);
}

/* What MXFP4 experts ask for besides the portable kernels, by what their activations are wished to be. */
static void test_mx_experts(void **state)
{
    (void)state;
    const struct {
        const char *arch;
        enum mote_act_wish act;
        int has_gate, n_step, n_small, n_one, n_two, n_fp8,
            n_bf16; /* programs; those of one plane, of two; wide ones */
    } placed[] = {{"sm_90a", MOTE_WISH_DEFAULT, 1, 1, 1, 0, 2, 0, 1},
                  {"sm_90a", MOTE_WISH_DEFAULT, 0, 0, 0, 0, 0, 0, 0},
                  {"sm_90a", MOTE_WISH_F32, 1, 0, 0, 0, 0, 0, 0},
                  {"sm_90a", MOTE_WISH_MXFP4, 1, 1, 1, 2, 0, 1, 0},
                  {"sm_90a", MOTE_WISH_MXFP4, 0, 1, 1, 1, 0, 0, 0},
                  {"sm_80", MOTE_WISH_DEFAULT, 1, 0, 0, 0, 0, 0, 0},
                  {"sm_80", MOTE_WISH_MXFP4, 1, 0, 0, 0, 0, 0, 0}};
    struct mote_matrix wide = mote_matrix_view(MOTE_FORMAT_MXFP4, NULL, 96, 256),
                       down = mote_matrix_view(MOTE_FORMAT_MXFP4, NULL, 256, 96);
    for (size_t i = 0; i < sizeof placed / sizeof *placed; i++) {
        struct mote_expert_set set = {.name = "exps",
                                      .n_expert = 1,
                                      .n_ff = 96,
                                      .d_model = 256,
                                      .gate = placed[i].has_gate ? &wide : NULL,
                                      .up = &wide,
                                      .down = &down,
                                      .act = placed[i].act};
        if (!set.gate) set.activation.kind = MOTE_ACTIVATION_RELU2;
        struct mote_backend *ahead;
        struct mote_cuda_unit unit[32];
        assert_int_equal(mote_cuda_ahead_create(placed[i].arch, &small, NULL, &ahead), MOTE_OK);
        if (ahead->ops->place_experts(ahead, &set) != MOTE_OK) fail_msg("%s", mote_error());
        size_t n = mote_cuda_ahead_units(ahead, unit, 32);
        int n_step = 0, n_small = 0, n_one = 0, n_two = 0, n_fp8 = 0, n_bf16 = 0;
        for (size_t u = 0; u < n && u < 32; u++) {
            n_step += !strcmp(unit[u].text, "mx_step.cu"), n_small += !strcmp(unit[u].text, "mx_small.cu");
            n_one += strstr(unit[u].define, " PLANES=1 ") != NULL;
            n_two += strstr(unit[u].define, " PLANES=2 ") != NULL;
            n_fp8 += strstr(unit[u].define, " FP8=1 ") != NULL;
            n_bf16 += strstr(unit[u].define, " FP8=0 ") != NULL;
        }
        assert_int_equal(n_step, placed[i].n_step);
        assert_int_equal(n_small, placed[i].n_small);
        assert_int_equal(n_one, placed[i].n_one);
        assert_int_equal(n_two, placed[i].n_two);
        assert_int_equal(n_fp8, placed[i].n_fp8);
        assert_int_equal(n_bf16, placed[i].n_bf16);
        ahead->ops->unplace(ahead, set.placed);
        ahead->ops->destroy(ahead);
    }
}

/* ---- scratch ---- */

/* Long steps leave nothing of four bytes for every pair and hidden column: unfused and plain experts go in pieces. */
static void test_scratch(void **state)
{
    (void)state;
    struct mote_backend_options options = {0};
    struct mote_backend_limits limits = small;
    limits.max_row = 512;
    limits.n_ff = limits.n_ff_shared = 8192;
    limits.n_expert = 128, limits.n_used = 8;
    size_t less, more;
    assert_int_equal(mote_backend_cuda.scratch(&options, &limits, &less), MOTE_OK);
    limits.max_row *= 2;
    assert_int_equal(mote_backend_cuda.scratch(&options, &limits, &more), MOTE_OK);
    assert_true(more > less);
    assert_true((more - less) / 512 < (size_t)(limits.n_used * limits.n_ff) * sizeof(float));
}

static int setup(void **state)
{
    (void)state;
    if (!mkdtemp(cache)) return -1;
    return setenv("MOTE_CACHE", cache, 1);
}

static int teardown(void **state)
{
    (void)state;
    char command[64];
    snprintf(command, sizeof command, "rm -rf %s", cache);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_device),  cmocka_unit_test(test_cache),
        cmocka_unit_test(test_unwritable), cmocka_unit_test(test_errors),
        cmocka_unit_test(test_ungated),    cmocka_unit_test(test_routers),
        cmocka_unit_test(test_choosers),   cmocka_unit_test(test_mx_experts),
        cmocka_unit_test(test_scratch),    cmocka_unit_test(test_usage),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
