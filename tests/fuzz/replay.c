/* replay.c: a main for fuzz targets: replays files, and folders of them, and seeded mutations of each.
 *
 * With libFuzzer, link the target without this file. Here, so that an ordinary test run covers the corpus: every seed
 * as it is, then N_MUTATION deterministic changes of it (bit flips, bytes, numbers at the edges, cuts, pieces moved).
 * A fault is a crash, memory that is not given back, or what a sanitizer says. MOTE_FUZZ_TRACE=1 prints each
 * mutation before it runs, so that the last line names the failing one; MOTE_FUZZ_ONLY=N runs that one alone.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "base/rng.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static long n_mutation = 2000, n_seed, n_run;

static void run(const uint8_t *data, size_t size)
{
    uint8_t *copy = malloc(size ? size : 1); /* exactly as long as it is: a read past the end shows */
    if (!copy) abort();
    if (size) memcpy(copy, data, size);
    size_t before = mote_mem_global_total();
    LLVMFuzzerTestOneInput(copy, size);
    free(copy);
    n_run++;
    if (mote_mem_global_total() != before) {
        fprintf(stderr, "%zu bytes were not freed\n", mote_mem_global_total() - before);
        abort();
    }
}

static size_t below(struct mote_rng *rng, size_t n)
{
    return n ? (size_t)mote_rng_below(rng, n) : 0;
}

/* Change data[*size] in place; it may get up to 31 bytes longer. */
static void mutate(uint8_t *data, size_t *size, struct mote_rng *rng)
{
    static const uint64_t edges[] = {0,          1,          0x7F,       0x80,       0xFF,       0x7FFFFFFF,
                                     0x80000000, 0xFFFFFFFF, 1ull << 32, 1ull << 62, 1ull << 63, UINT64_MAX};
    uint64_t edge = edges[below(rng, sizeof edges / sizeof *edges)];
    /* Headers are at the front: half of all changes fall into the first 512 bytes. */
    size_t reach = below(rng, 2) && *size > 512 ? 512 : *size, at = below(rng, reach), n;
    switch (below(rng, 7)) {
    case 0:
    case 1:
        if (*size) data[at] ^= (uint8_t)(1u << below(rng, 8));
        break;
    case 2:
        if (*size) data[at] = (uint8_t)mote_rng_u64(rng);
        break;
    case 3: /* a number at an edge, 1 to 8 bytes */
        n = (size_t)1 << below(rng, 4);
        if (at + n <= *size) memcpy(data + at, &edge, n);
        break;
    case 4: *size = below(rng, *size + 1); break;
    case 5: /* a piece goes */
        n = below(rng, 32);
        if (at + n <= *size) {
            memmove(data + at, data + at + n, *size - at - n);
            *size -= n;
        }
        break;
    case 6: /* a piece comes twice */
        n = below(rng, 32);
        if (at + n <= *size) {
            memmove(data + at + n, data + at, *size - at);
            *size += n;
        }
        break;
    }
}

static void replay_data(const char *path, const uint8_t *seed, size_t n_byte)
{
    int trace = getenv("MOTE_FUZZ_TRACE") != NULL;
    uint8_t *data = malloc(n_byte + 256); /* at most 4 changes of at most 31 bytes more */
    if (!data) abort();
    run(seed, n_byte);
    const char *only = getenv("MOTE_FUZZ_ONLY");
    long first = only ? atol(only) : 0, end = only ? first + 1 : n_mutation;
    for (long i = first; i < end; i++) {
        struct mote_rng rng;
        mote_rng_seed(&rng, (uint64_t)i);
        size_t size = n_byte;
        memcpy(data, seed, n_byte);
        for (size_t k = 1 + below(&rng, 4); k > 0; k--) mutate(data, &size, &rng);
        if (trace) fprintf(stderr, "%s mutation %ld\n", path, i);
        run(data, size);
    }
    free(data);
}

static void replay_file(const char *path)
{
    struct stat info;
    FILE *file = fopen(path, "rb");
    if (!file || fstat(fileno(file), &info) != 0) {
        fprintf(stderr, "%s: cannot read\n", path);
        exit(1);
    }
    uint8_t *data = malloc((size_t)info.st_size + 1);
    if (!data) abort();
    size_t size = fread(data, 1, (size_t)info.st_size, file);
    fclose(file);
    replay_data(path, data, size);
    n_seed++;
    free(data);
}

static int not_hidden(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

static void replay(const char *path)
{
    struct dirent **entry;
    int n = scandir(path, &entry, not_hidden, alphasort);
    if (n < 0) {
        replay_file(path);
        return;
    }
    for (int i = 0; i < n; i++) {
        char name[1024];
        snprintf(name, sizeof name, "%s/%s", path, entry[i]->d_name);
        replay(name);
        free(entry[i]);
    }
    free(entry);
}

int main(int argc, char **argv)
{
    /* What a target keeps from one input to the next is made now, before memory is counted. */
    LLVMFuzzerTestOneInput((const uint8_t *)"", 0);
    LLVMFuzzerTestOneInput((const uint8_t *)"x", 1);
    if (getenv("MOTE_FUZZ_MUTATIONS")) n_mutation = atol(getenv("MOTE_FUZZ_MUTATIONS"));
    for (int i = 1; i < argc; i++) replay(argv[i]);
    printf("%ld seeds, %ld inputs\n", n_seed, n_run);
    if (n_seed == 0) fprintf(stderr, "usage: %s FILE-OR-FOLDER...\n", argv[0]);
    return n_seed == 0;
}
