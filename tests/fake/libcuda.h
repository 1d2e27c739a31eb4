/* libcuda.h: how tests steer and read the driver of tests/fake/libcuda.c: symbol `fake` of that library. */
#ifndef MOTE_TESTS_FAKE_LIBCUDA_H
#define MOTE_TESTS_FAKE_LIBCUDA_H

#include <stddef.h>
#include <stdint.h>

struct fake_state {
    /* The (fail_after + 1)-th call of this symbol from now fails, once or always. */
    const char *fail_symbol;
    int fail_after, fail_code, fail_always;
    /* What is alive, and what was done. */
    int n_context, n_stream, n_pinned, n_graph, n_exec, n_event, n_module;
    size_t n_byte;
    int capturing, n_wait, n_record, n_plain, n_chain, dynamic_shared, n_copy;
    /* A caller's stream (the test sets it), and what was launched on it and waited for. */
    void *lent;
    int n_lent, n_lent_wait;
};

/* As the driver lays it out: written down a second time, so that a slip in cuda/driver.h is seen. */
struct fake_launch {
    unsigned grid[3], block[3], shared;
    void *stream;
    struct {
        int id;
        char pad[4];
        int value;
        char rest[60];
    } * attribute;
    unsigned n_attribute;
};

#endif
