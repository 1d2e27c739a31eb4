/* cuda_backend.c: the CUDA backend: creation, memory, the step block, programs, recorded steps, and the operations that
 * are a launch of their own. */
#include "backend/cuda_backend.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const struct cuda_text rows_text = {
    .name = "rows.cu", .kernel = {"input_rows", "activate", "combine", "widen", "narrow"}};
static const struct cuda_text shortlist_text = {.name = "shortlist.cu", .kernel = {"shortlist"}};

/* ---- layout of the scratch ---- */

struct cuda_scratch {
    size_t step, step_bytes; /* token, position, span_of_row, spans: uploaded as one */
    size_t position, span_of_row, span, fault;
    size_t act_q, act_scale;   /* [max_row][max_col], also [max_row][d_model] */
    size_t down_q, down_scale; /* of a piece: [pair + row][widest n_ff] */
    size_t edge_x, edge_y;     /* f32 [max_row][d_model], where rows of moe are of other types */
    size_t gate, up, product;  /* f32 of a piece (CUDA_PIECE_ROWS): [pair][n_ff], .., [pair][d_model] */
    size_t ticket;             /* i32 [max_row] */
    size_t group;              /* [shortlist rows][groups of a row] */
    size_t attend, prefill;
    size_t bytes;
};

static int take(size_t *total, size_t *offset, int64_t count, size_t size)
{
    size_t bytes;
    *offset = *total;
    return count >= 0 && mote_mul_size((size_t)count, size, &bytes) && mote_add_size(bytes, 255, &bytes) &&
           mote_add_size(*total, bytes & ~(size_t)255, total);
}

static int take_act(size_t *total, size_t *q, size_t *scale, int64_t n_row, int64_t n_col)
{
    int64_t unit = (n_col + MOTE_UNIT_COLS - 1) / MOTE_UNIT_COLS, count;
    return !__builtin_mul_overflow(n_row, unit, &count) && take(total, q, count, 256) &&
           take(total, scale, count, 48);
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t piece_rows(const struct mote_backend_limits *l)
{
    return l->max_row < CUDA_PIECE_ROWS ? l->max_row : CUDA_PIECE_ROWS;
}

/* Blocks of shortlist.cu for a row. */
static int64_t span_count(const struct mote_backend_limits *l)
{
    return (l->n_vocab + MOTE_SPAN_LOGITS - 1) / MOTE_SPAN_LOGITS;
}

/* Steps of many rows and MXFP4 experts, which are never at work at once. */
static size_t scratch_of_pairs(const struct mote_backend_limits *l)
{
    size_t prefill = mote_cuda_prefill_scratch(l), mx = mote_cuda_mx_scratch(l);
    return prefill > mx ? prefill : mx;
}

static mote_status lay_out(const struct mote_backend_limits *l, int n_sm, struct cuda_scratch *at)
{
    FAIL_IF(l->max_row < 1 || l->max_row > 65535, MOTE_ARGUMENT,
            "backend: %lld rows a step, expected 1..65535", (long long)l->max_row);
    FAIL_IF(l->n_expert < 0 || l->n_expert > MOTE_MAX_EXPERTS || l->n_used < 0 || l->n_used > l->n_expert ||
                l->n_rot < 0 || l->n_rot > l->head_dim || l->n_vocab < 0 || l->n_vocab > INT32_MAX / 2,
            MOTE_ARGUMENT, "backend: limits out of range");
    memset(at, 0, sizeof *at);
    int is_mx = mote_cuda_mx_takes_all(l);
    int64_t n = l->max_row, n_other = is_mx ? 0 : n, ff = larger(l->n_ff, l->n_ff_shared),
            n_list = n < MOTE_SHORTLIST_ROWS ? n : MOTE_SHORTLIST_ROWS, n_piece = is_mx ? 0 : piece_rows(l),
            piece_pair = n_piece * larger(l->n_used, 1);
    size_t total = 0;
    int ok = take(&total, &at->step, n, sizeof(int32_t)) && take(&total, &at->position, n, sizeof(int32_t)) &&
             take(&total, &at->span_of_row, n, sizeof(int32_t)) &&
             take(&total, &at->span, n, sizeof(struct mote_step_span));
    at->step_bytes = total;
    ok =
        ok && take(&total, &at->fault, 1, sizeof(struct mote_step_fault)) &&
        take_act(&total, &at->act_q, &at->act_scale, n_other, larger(l->max_col, l->d_model)) &&
        take_act(&total, &at->down_q, &at->down_scale, n_piece * l->n_used + n_piece, ff) &&
        take(&total, &at->edge_x, mote_limits_have_edges(l) ? n_other : 0,
             (size_t)l->d_model * sizeof(float)) &&
        take(&total, &at->edge_y, mote_limits_have_edges(l) ? n_other : 0,
             (size_t)l->d_model * sizeof(float)) &&
        take(&total, &at->gate, piece_pair, (size_t)ff * sizeof(float)) &&
        take(&total, &at->up, piece_pair, (size_t)ff * sizeof(float)) &&
        take(&total, &at->product, piece_pair, (size_t)l->d_model * sizeof(float)) &&
        take(&total, &at->ticket, n, sizeof(int32_t)) &&
        take(&total, &at->group, n_list * span_count(l) * MOTE_SPAN_GROUPS, sizeof(struct mote_step_group)) &&
        take(&total, &at->attend, 1, mote_cuda_attend_scratch(l, n_sm)) &&
        take(&total, &at->prefill, 1, is_mx ? mote_cuda_mx_scratch(l) : scratch_of_pairs(l));
    FAIL_IF(!ok, MOTE_ARGUMENT, "backend: scratch for %lld rows is more than an address space", (long long)n);
    at->bytes = total;
    return MOTE_OK;
}

/* ---- programs ---- */

mote_status mote_cuda_program(struct cuda_backend *cuda, const struct cuda_text *text, int *index,
                              const char *define, ...)
{
    struct cuda_program program = {.text = text};
    va_list args;
    va_start(args, define);
    int length = vsnprintf(program.define, sizeof program.define, define, args);
    va_end(args);
    FAIL_IF(length < 0 || (size_t)length >= sizeof program.define, MOTE_INTERNAL,
            "%s: constants of %d characters", text->name, length);
    for (size_t i = 0; i < cuda->n_program; i++)
        if (cuda->program[i].text == text && !strcmp(cuda->program[i].define, program.define)) {
            *index = (int)i;
            return MOTE_OK;
        }
    if (cuda->n_program == cuda->max_program) {
        size_t more = cuda->max_program ? 2 * cuda->max_program : 32;
        TRY(mote_mem_resize(cuda->budget, MOTE_MEM_TABLES, more * sizeof *cuda->program, &cuda->program));
        cuda->max_program = more;
    }
    *index = (int)cuda->n_program;
    cuda->program[cuda->n_program++] = program;
    return MOTE_OK;
}

static void show_compiling(void *context, size_t done, size_t total, size_t cached)
{
    (void)cached;
    struct cuda_backend *cuda = context;
    if (cuda->progress) cuda->progress(cuda->progress_context, "compiling kernels", done, total, "units");
}

static mote_status common_programs(struct cuda_backend *cuda)
{
    TRY(mote_cuda_program(cuda, &rows_text, &cuda->rows_program, "ROWS=1"));
    if (cuda->limits.n_vocab)
        TRY(mote_cuda_program(cuda, &shortlist_text, &cuda->shortlist_program, "VOCAB=%lld",
                              (long long)cuda->limits.n_vocab));
    return mote_cuda_attend_programs(cuda);
}

static mote_status ready(struct mote_backend *backend)
{
    struct cuda_backend *cuda = cuda_of(backend);
    size_t n = 0;
    struct mote_cuda_unit *unit;
    struct mote_cuda_module **module;
    TRY(mote_mem_calloc(cuda->budget, MOTE_MEM_TABLES, cuda->n_program + 1, sizeof *unit + sizeof *module,
                        &unit));
    module = (struct mote_cuda_module **)(void *)(unit + cuda->n_program);
    for (size_t i = 0; i < cuda->n_program; i++)
        if (!cuda->program[i].module)
            unit[n++] = (struct mote_cuda_unit){.text = cuda->program[i].text->name,
                                                .define = cuda->program[i].define};
    mote_status status = n ? mote_cuda_load(cuda->cuda, unit, n, module, show_compiling, cuda) : MOTE_OK;
    n = 0;
    for (size_t i = 0; i < cuda->n_program && status == MOTE_OK;
         i++) /* all are owned before anything can fail */
        if (!cuda->program[i].module) cuda->program[i].module = module[n++];
    for (size_t i = 0; i < cuda->n_program && status == MOTE_OK; i++) {
        struct cuda_program *program = &cuda->program[i];
        for (int k = 0; k < CUDA_PROGRAM_KERNELS && program->text->kernel[k] && status == MOTE_OK; k++)
            if (!program->kernel[k].function)
                status =
                    mote_cuda_kernel(cuda->cuda, program->module, program->text->kernel[k],
                                     program->text->shared ? MOTE_CUDA_SHARED_REST : 0, &program->kernel[k]);
    }
    mote_mem_free(unit);
    return status;
}

mote_status mote_cuda_run(struct cuda_backend *cuda, int program, int kernel, unsigned grid_x,
                          unsigned grid_y, unsigned grid_z, unsigned block, size_t shared, void **args)
{
    struct mote_cuda_launch shape = {.grid = {grid_x, grid_y, grid_z},
                                     .block = block,
                                     .shared = shared,
                                     .flags = cuda->chain ? MOTE_CUDA_CHAIN : 0};
    return mote_cuda_launch(cuda->cuda, &cuda->program[program].kernel[kernel], &shape, args);
}

/* ---- creation ---- */

void mote_cuda_destroy(struct mote_backend *backend)
{
    struct cuda_backend *cuda = cuda_of(backend);
    if (cuda->cuda) {
        (void)mote_cuda_sync(cuda->cuda);
        for (size_t i = 0; i < cuda->n_record; i++)
            mote_cuda_graph_destroy(cuda->cuda, cuda->record[i].graph);
        for (size_t i = 0; i < cuda->n_program; i++) mote_cuda_unload(cuda->cuda, cuda->program[i].module);
        for (int i = 0; i < CUDA_STAGES; i++) {
            if (cuda->stage[i].event) mote_cuda_event_destroy(cuda->cuda, cuda->stage[i].event);
            mote_cuda_free_pinned(cuda->cuda, cuda->stage[i].data);
        }
        mote_cuda_free_pinned(cuda->cuda, cuda->host_step);
        mote_cuda_free_pinned(cuda->cuda, cuda->host_fault);
        if (cuda->own_scratch) mote_cuda_device_free(cuda, cuda->own_scratch);
        mote_cuda_close(cuda->cuda);
    }
    if (cuda->pool) mote_pool_destroy(cuda->pool);
    mote_mem_free(cuda->record);
    mote_mem_free(cuda->allocation);
    mote_mem_free(cuda->program);
    mote_mem_free(cuda->router);
    mote_mem_free(cuda);
}

static void use_limits(struct cuda_backend *cuda, const struct mote_backend_limits *limits)
{
    cuda->limits = *limits;
    cuda->piece_pair = piece_rows(limits) * limits->n_used;
    cuda->decode_rows = CUDA_DECODE_ROWS;
    if (limits->n_used > CUDA_DECODE_PAIRS / CUDA_DECODE_ROWS)
        cuda->decode_rows = CUDA_DECODE_PAIRS / limits->n_used;
}

mote_status mote_cuda_create_begin(const struct mote_backend_ops *ops,
                                   const struct mote_backend_limits *limits, struct mote_budget *budget,
                                   struct cuda_backend **out)
{
    struct cuda_backend *cuda;
    TRY(mote_mem_calloc(budget, MOTE_MEM_TABLES, 1, sizeof *cuda, &cuda));
    cuda->base.ops = ops;
    cuda->budget = budget;
    cuda->own_limits = *limits;
    use_limits(cuda, limits);
    *out = cuda;
    return MOTE_OK;
}

mote_status mote_cuda_create_end(struct cuda_backend *cuda, mote_status status, struct mote_backend **out)
{
    if (status == MOTE_OK) status = common_programs(cuda);
    if (status == MOTE_OK) *out = &cuda->base;
    else mote_cuda_destroy(&cuda->base);
    return status;
}

/* ---- memory ---- */

static mote_status take_memory(struct cuda_backend *cuda, enum mote_mem_kind kind, int is_pinned, size_t size,
                               void *out)
{
    if (cuda->n_allocation == cuda->max_allocation) {
        size_t more = cuda->max_allocation ? 2 * cuda->max_allocation : 256;
        TRY(mote_mem_resize(cuda->budget, MOTE_MEM_TABLES, more * sizeof *cuda->allocation,
                            &cuda->allocation));
        cuda->max_allocation = more;
    }
    void *memory;
    TRY(mote_budget_take(cuda->budget, kind, size));
    mote_status status = is_pinned ? mote_cuda_alloc_pinned(cuda->cuda, size, &memory)
                                   : mote_cuda_alloc(cuda->cuda, size, &memory);
    if (status != MOTE_OK) {
        mote_budget_give(cuda->budget, kind, size);
        return status;
    }
    cuda->allocation[cuda->n_allocation++] = (struct cuda_allocation){memory, size, kind, is_pinned};
    memcpy(out, &memory, sizeof memory);
    return MOTE_OK;
}

mote_status mote_cuda_device_alloc(struct cuda_backend *cuda, enum mote_mem_kind kind, size_t size, void *out)
{
    return take_memory(cuda, kind, 0, size ? size : 1, out);
}

void mote_cuda_device_free(struct cuda_backend *cuda, void *memory)
{
    for (size_t i = cuda->n_allocation; memory && i--;)
        if (cuda->allocation[i].memory == memory) {
            if (cuda->allocation[i].is_pinned) mote_cuda_free_pinned(cuda->cuda, memory);
            else mote_cuda_free(cuda->cuda, memory);
            mote_budget_give(cuda->budget, cuda->allocation[i].kind, cuda->allocation[i].size);
            cuda->allocation[i] = cuda->allocation[--cuda->n_allocation];
            return;
        }
}

static mote_status op_alloc(struct mote_backend *backend, enum mote_mem_kind kind, size_t size, void *out)
{
    struct cuda_backend *cuda = cuda_of(backend);
    void *memory;
    TRY(mote_cuda_device_alloc(cuda, kind, size, &memory));
    mote_status status = mote_cuda_fill(cuda->cuda, memory, 0, size);
    if (status != MOTE_OK) {
        mote_cuda_device_free(cuda, memory);
        return status;
    }
    memcpy(out, &memory, sizeof memory);
    return MOTE_OK;
}

static mote_status op_alloc_host(struct mote_backend *backend, enum mote_mem_kind kind, size_t size,
                                 void *out)
{
    void *memory;
    TRY(take_memory(cuda_of(backend), kind, 1, size ? size : 1, &memory));
    memset(memory, 0, size);
    memcpy(out, &memory, sizeof memory);
    return MOTE_OK;
}

/* A cache that goes may be named in a recorded step, but a replay reads caches from the step block alone. */
static void op_free(struct mote_backend *backend, void *memory)
{
    mote_cuda_device_free(cuda_of(backend), memory);
}

static mote_status op_upload(struct mote_backend *backend, void *to, const void *host_from, size_t size)
{
    cuda_of(backend)->act_of = NULL; /* it may be what is written */
    return mote_cuda_upload(cuda_of(backend)->cuda, to, host_from, size);
}

/* Wait, and say what the kernels of the step found. */
static mote_status settle(struct cuda_backend *cuda)
{
    TRY(mote_cuda_download(cuda->cuda, cuda->host_fault, cuda->fault, sizeof *cuda->host_fault));
    TRY(mote_cuda_sync(cuda->cuda));
    cuda->is_step_pending = 0;
    struct mote_step_fault fault = *cuda->host_fault;
    if (fault.code == MOTE_STEP_FINE) return MOTE_OK;
    TRY(mote_cuda_fill(cuda->cuda, cuda->fault, 0, sizeof fault));
    switch (fault.code) {
    case MOTE_STEP_NAN:
        return mote_fail(MOTE_NUMERIC, "router: row %d of the step has a NaN (layer %d)", fault.row,
                         fault.layer);
    case MOTE_STEP_TOKEN:
        return mote_fail(MOTE_ARGUMENT, "token %d (row %d of the step) is not in the vocabulary", fault.value,
                         fault.row);
    default:
        return mote_fail(MOTE_ARGUMENT, "experts: pair %d of the step chooses expert %d, which is not there",
                         fault.row, fault.value);
    }
}

static mote_status op_download(struct mote_backend *backend, void *host_to, const void *from, size_t size)
{
    struct cuda_backend *cuda = cuda_of(backend);
    TRY(mote_cuda_download(cuda->cuda, host_to, from, size));
    return settle(cuda);
}

static mote_status op_fetch(struct mote_backend *backend, void *host_to, const void *from, size_t size)
{
    return mote_cuda_download(cuda_of(backend)->cuda, host_to, from, size);
}

static mote_status op_sync(struct mote_backend *backend)
{
    return settle(cuda_of(backend));
}

/* ---- the step ---- */

static mote_status begin(struct mote_backend *backend, const struct mote_batch *batch)
{
    struct cuda_backend *cuda = cuda_of(backend);
    FAIL_IF(batch->n_row < 1 || batch->n_row > cuda->limits.max_row, MOTE_ARGUMENT,
            "step: %d rows, expected 1..%lld", batch->n_row, (long long)cuda->limits.max_row);
    FAIL_IF(batch->n_span < 1 || batch->n_span > batch->n_row, MOTE_ARGUMENT, "step: %d spans of %d rows",
            batch->n_span, batch->n_row);
    if (cuda->is_step_pending) TRY(settle(cuda)); /* the last step still reads the staging block */
    uint8_t *block = cuda->host_step;
    int32_t *token = (int32_t *)(void *)block;
    int32_t *position = (int32_t *)(void *)(block + ((uint8_t *)cuda->position - (uint8_t *)cuda->token));
    int32_t *span_of_row =
        (int32_t *)(void *)(block + ((uint8_t *)cuda->span_of_row - (uint8_t *)cuda->token));
    struct mote_step_span *span =
        (struct mote_step_span *)(void *)(block + ((uint8_t *)cuda->span - (uint8_t *)cuda->token));
    memcpy(token, batch->token, (size_t)batch->n_row * sizeof *token);
    int32_t row = 0;
    cuda->max_span_row = 0;
    for (int32_t s = 0; s < batch->n_span; s++) {
        const struct mote_span *from = &batch->span[s];
        FAIL_IF(from->row != row || from->n_row < 1 || from->n_row > batch->n_row - row || from->n_past < 0 ||
                    from->n_past + from->n_row > from->kv.n_ctx || from->kv.n_ctx > INT32_MAX,
                MOTE_ARGUMENT, "step: span %d (rows %d to %d after %lld of %lld positions) does not fit", s,
                from->row, from->row + from->n_row, (long long)from->n_past, (long long)from->kv.n_ctx);
        span[s] = (struct mote_step_span){.k = from->kv.k,
                                          .v = from->kv.v,
                                          .n_ctx = from->kv.n_ctx,
                                          .row = from->row,
                                          .n_row = from->n_row,
                                          .n_past = (int32_t)from->n_past};
        for (int32_t i = 0; i < from->n_row; i++) {
            position[row + i] = (int32_t)from->n_past + i;
            span_of_row[row + i] = s;
        }
        row += from->n_row;
        if (from->n_row > cuda->max_span_row) cuda->max_span_row = from->n_row;
    }
    FAIL_IF(row != batch->n_row, MOTE_ARGUMENT, "step: spans cover %d of %d rows", row, batch->n_row);
    cuda->batch = batch;
    cuda->act_of = NULL;
    cuda->is_step_pending = 1;
    /* Spans lie last, and there are few. */
    size_t bytes = (size_t)((const uint8_t *)(span + batch->n_span) - block);
    return mote_cuda_upload(cuda->cuda, cuda->token, block, bytes);
}

/* ---- recorded steps ---- */

static int same_shape(const struct cuda_record *record, const struct cuda_record *wanted)
{
    return !memcmp(&record->shape, &wanted->shape, sizeof record->shape) && record->n_row == wanted->n_row &&
           record->n_span == wanted->n_span && record->max_span_row == wanted->max_span_row &&
           record->kv_type == wanted->kv_type && record->n_ctx == wanted->n_ctx;
}

static mote_status replay_begin(struct mote_backend *backend, const struct mote_replay *shape, int *state)
{
    struct cuda_backend *cuda = cuda_of(backend);
    *state = MOTE_REPLAY_RUN;
    const struct mote_batch *batch = cuda->batch;
    if (cuda->no_graph) return MOTE_OK;
    struct cuda_record wanted = {.shape = *shape,
                                 .n_row = batch->n_row,
                                 .n_span = batch->n_span,
                                 .max_span_row = cuda->max_span_row,
                                 .kv_type = batch->span[0].kv.type,
                                 .n_ctx = batch->span[0].kv.n_ctx};
    for (int32_t s = 1; s < batch->n_span; s++) /* launches may be sized by the longest cache */
        if (batch->span[s].kv.n_ctx > wanted.n_ctx) wanted.n_ctx = batch->span[s].kv.n_ctx;
    for (size_t i = 0; i < cuda->n_record; i++)
        if (same_shape(&cuda->record[i], &wanted)) {
            *state = MOTE_REPLAY_DONE;
            return mote_cuda_graph_launch(cuda->cuda, cuda->record[i].graph);
        }
    if (cuda->n_record == CUDA_RECORDS) { /* the oldest makes room */
        mote_cuda_graph_destroy(cuda->cuda, cuda->record[0].graph);
        memmove(cuda->record, cuda->record + 1, --cuda->n_record * sizeof *cuda->record);
    }
    cuda->recording = wanted;
    TRY(mote_cuda_capture_begin(cuda->cuda));
    cuda->is_recording = 1;
    return MOTE_OK;
}

static mote_status replay_end(struct mote_backend *backend, mote_status status)
{
    struct cuda_backend *cuda = cuda_of(backend);
    if (!cuda->is_recording) return status;
    cuda->is_recording = 0;
    if (status != MOTE_OK) {
        mote_cuda_capture_cancel(cuda->cuda);
        return status;
    }
    TRY(mote_cuda_capture_end(cuda->cuda, &cuda->recording.graph));
    cuda->record[cuda->n_record++] = cuda->recording;
    return mote_cuda_graph_launch(cuda->cuda, cuda->recording.graph);
}

static void watch(struct mote_backend *backend, struct mote_cuda_watch *watch)
{
    mote_cuda_watch(cuda_of(backend)->cuda, watch);
}

/* ---- operations of one launch ---- */

mote_status mote_cuda_input_rows(struct cuda_backend *cuda, const float *x, const int32_t *row, int64_t n_row,
                                 int64_t n_col, const float *norm, float eps, float *out,
                                 const struct mote_step_act *act)
{
    struct mote_step_act none = {0};
    if (!act) act = &none;
    struct {
        int32_t row[CUDA_INPUT_ROWS];
    } rows;
    int columns = (int)n_col, n_unit = (int)((n_col + MOTE_UNIT_COLS - 1) / MOTE_UNIT_COLS),
        by_list = row != NULL;
    if (row) memcpy(rows.row, row, (size_t)n_row * sizeof *row);
    void *args[] = {&x, &rows, &by_list, &norm, &eps, &columns, &n_unit, &out, (void *)(uintptr_t)act};
    return mote_cuda_run(cuda, cuda->rows_program, CUDA_ROWS_INPUT, (unsigned)n_row, 1, 1,
                         cuda_row_warps(n_col) * 32, 0, args);
}

mote_status mote_cuda_want_act(struct cuda_backend *cuda, const float *x, int64_t n_row, int64_t n_col,
                               enum mote_act_wish wish)
{
    int rounding = cuda_rounding(wish);
    if (cuda->act_of == x && cuda->act.rounding == rounding) return MOTE_OK;
    cuda->act.rounding = rounding;
    TRY(mote_cuda_input_rows(cuda, x, NULL, n_row, n_col, NULL, 0, NULL, &cuda->act));
    cuda->act_of = x;
    return MOTE_OK;
}

static mote_status rms_norm(struct mote_backend *backend, const float *x, const int32_t *row, int64_t n_row,
                            int64_t n_col, const float *norm, float eps, float *y)
{
    struct cuda_backend *cuda = cuda_of(backend);
    cuda->act_of = NULL;
    cuda->act.rounding = MOTE_ROUND_I16; /* who reads it is not known here */
    for (int64_t at = 0; at < n_row; at += CUDA_INPUT_ROWS) {
        int64_t n = n_row - at < CUDA_INPUT_ROWS ? n_row - at : CUDA_INPUT_ROWS;
        int quantise =
            n_row <= cuda->decode_rows && n_row <= CUDA_INPUT_ROWS; /* act holds one launch's rows */
        TRY(mote_cuda_input_rows(cuda, x, row + at, n, n_col, norm, eps, y + at * n_col,
                                 quantise ? &cuda->act : NULL));
        if (quantise) cuda->act_of = y;
    }
    return MOTE_OK;
}

static mote_status embed(struct mote_backend *backend, const struct mote_weight *embedding, float *y)
{
    struct cuda_backend *cuda = cuda_of(backend);
    const struct cuda_weight *w = embedding->placed;
    int n_vocab = (int)w->n_row, n_col = (int)w->n_col;
    unsigned n_row = (unsigned)cuda->batch->n_row;
    if (w->kind.code == MOTE_CODE_NONE) {
        size_t row_bytes = mote_tile_bytes(&w->kind, w->n_col) / MOTE_TILE_ROWS;
        void *args[] = {
            (void *)(uintptr_t)&w->data, &row_bytes, &cuda->token, &n_vocab, &y, &n_col, &cuda->fault};
        return mote_cuda_run(cuda, w->decode, CUDA_PLAIN_EMBED, n_row, 1, 1, 128, 0, args);
    }
    void *args[] = {(void *)(uintptr_t)&w->data, &cuda->token, &n_vocab, &y, &n_col, &cuda->fault};
    return mote_cuda_run(cuda, w->decode, CUDA_LINEAR_EMBED, n_row, 1, 1, 128, 0, args);
}

static mote_status shortlist(struct mote_backend *backend, const float *logits, int64_t n_row,
                             struct mote_shortlist *list)
{
    struct cuda_backend *cuda = cuda_of(backend);
    FAIL_IF(n_row < 1 || n_row > MOTE_SHORTLIST_ROWS || n_row > cuda->limits.max_row, MOTE_ARGUMENT,
            "shortlist: %lld rows, expected 1..%d", (long long)n_row, MOTE_SHORTLIST_ROWS);
    void *args[] = {&logits, &cuda->group, &cuda->ticket, &list};
    return mote_cuda_run(cuda, cuda->shortlist_program, 0, (unsigned)span_count(&cuda->limits),
                         (unsigned)n_row, 1, MOTE_SPAN_THREADS, 0, args);
}

/* ---- whose scratch ---- */

static struct mote_step_act act_at(uint8_t *memory, size_t q, size_t scale)
{
    return (struct mote_step_act){(signed char *)memory + q, (float *)(void *)(memory + scale),
                                  MOTE_ROUND_I16};
}

static void use_scratch(struct cuda_backend *cuda, const struct cuda_scratch *at, uint8_t *m)
{
    cuda->token = (int32_t *)(void *)(m + at->step);
    cuda->position = (int32_t *)(void *)(m + at->position);
    cuda->span_of_row = (int32_t *)(void *)(m + at->span_of_row);
    cuda->span = (struct mote_step_span *)(void *)(m + at->span);
    cuda->fault = (struct mote_step_fault *)(void *)(m + at->fault);
    cuda->act = act_at(m, at->act_q, at->act_scale);
    cuda->down = act_at(m, at->down_q, at->down_scale);
    cuda->edge_x = (float *)(void *)(m + at->edge_x);
    cuda->edge_y = (float *)(void *)(m + at->edge_y);
    cuda->gate = (float *)(void *)(m + at->gate);
    cuda->up = (float *)(void *)(m + at->up);
    cuda->product = (float *)(void *)(m + at->product);
    cuda->ticket = (int32_t *)(void *)(m + at->ticket);
    cuda->group = (struct mote_step_group *)(void *)(m + at->group);
    cuda->attend_scratch = m + at->attend;
    cuda->prefill_scratch = m + at->prefill;
    cuda->act_of = NULL;
}

static mote_status lend(struct mote_backend *backend, const struct mote_loan *loan)
{
    struct cuda_backend *cuda = cuda_of(backend);
    const struct mote_backend_limits *limits = loan ? loan->limits : &cuda->own_limits;
    struct cuda_scratch at;
    TRY(lay_out(limits, cuda->info->n_sm, &at));
    FAIL_IF(loan && loan->scratch && loan->scratch_bytes < at.bytes, MOTE_ARGUMENT,
            "a workspace of %zu bytes, %lld rows need %zu", loan->scratch_bytes, (long long)limits->max_row,
            at.bytes);
    use_limits(cuda, limits);
    if (!loan) use_scratch(cuda, &at, cuda->own_scratch);
    else if (loan->scratch) use_scratch(cuda, &at, loan->scratch);
    if (loan) cuda->fault = loan->fault;
    if (loan) mote_cuda_stream_lend(cuda->cuda, loan->stream);
    else mote_cuda_stream_own(cuda->cuda);
    return MOTE_OK;
}

/* ---- the table ---- */

static const struct mote_backend_ops cuda_ops = {
    .name = "cuda",
    .destroy = mote_cuda_destroy,
    .alloc = op_alloc,
    .free = op_free,
    .alloc_host = op_alloc_host,
    .upload = op_upload,
    .download = op_download,
    .fetch = op_fetch,
    .sync = op_sync,
    .place = mote_cuda_place,
    .place_experts = mote_cuda_place_experts,
    .unplace = mote_cuda_unplace,
    .place_routing = mote_cuda_place_routing,
    .ready = ready,
    .lend = lend,
    .replay_begin = replay_begin,
    .replay_end = replay_end,
    .watch = watch,
    .begin = begin,
    .embed = embed,
    .rms_norm = rms_norm,
    .linear = mote_cuda_linear,
    .attend = mote_cuda_attend,
    .route = mote_cuda_route,
    .moe = mote_cuda_edge_moe,
    .shortlist = shortlist,
};

static mote_status scratch(const struct mote_backend_options *options,
                           const struct mote_backend_limits *limits, size_t *bytes)
{
    struct mote_cuda_info info;
    struct cuda_scratch at;
    /* A plan for a machine without a device: as for the largest that we know. */
    if (mote_cuda_describe(options->device, &info) != MOTE_OK) info.n_sm = 132;
    TRY(lay_out(limits, info.n_sm, &at));
    *bytes = at.bytes;
    return MOTE_OK;
}

static mote_status open_backend(struct cuda_backend *cuda, const struct mote_backend_options *options)
{
    struct cuda_scratch at;
    TRY(mote_cuda_open(options->device, &cuda->cuda));
    cuda->info = mote_cuda_info(cuda->cuda);
    FAIL_IF(cuda->info->cc < 80, MOTE_UNSUPPORTED,
            "device %d (%s) has compute capability %d.%d, kernels need 8.0 or more", options->device,
            cuda->info->name, cuda->info->cc / 10, cuda->info->cc % 10);
    cuda->chain = cuda->info->cc >= 90;
    TRY(lay_out(&cuda->limits, cuda->info->n_sm, &at));
    TRY(mote_cuda_device_alloc(cuda, MOTE_MEM_SCRATCH, at.bytes, &cuda->own_scratch));
    TRY(mote_cuda_fill(cuda->cuda, cuda->own_scratch, 0, at.bytes));
    use_scratch(cuda, &at, cuda->own_scratch);
    cuda->step_bytes = at.step_bytes;
    TRY(mote_cuda_alloc_pinned(cuda->cuda, at.step_bytes, &cuda->host_step));
    memset(cuda->host_step, 0, at.step_bytes);
    TRY(mote_cuda_alloc_pinned(cuda->cuda, sizeof *cuda->host_fault, &cuda->host_fault));
    TRY(mote_pool_create(options->n_thread, &cuda->pool));
    return mote_mem_calloc(cuda->budget, MOTE_MEM_TABLES, CUDA_RECORDS, sizeof *cuda->record, &cuda->record);
}

static mote_status create(const struct mote_backend_options *options,
                          const struct mote_backend_limits *limits, struct mote_budget *budget,
                          struct mote_backend **out)
{
    *out = NULL;
    struct cuda_backend *cuda;
    TRY(mote_cuda_create_begin(&cuda_ops, limits, budget, &cuda));
    cuda->moe_kernels = options->moe_kernels;
    cuda->compact = options->compact;
    cuda->no_graph = options->no_graph;
    cuda->progress = options->progress;
    cuda->progress_context = options->progress_context;
    return mote_cuda_create_end(cuda, open_backend(cuda, options), out);
}

const struct mote_backend_kind mote_backend_cuda = {.name = "cuda",
                                                    .weight_bytes = mote_cuda_weight_bytes,
                                                    .expert_bytes = mote_cuda_expert_bytes,
                                                    .scratch = scratch,
                                                    .create = create};
