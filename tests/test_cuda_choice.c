/* test_cuda_choice.c: the CUDA backend's expert block with a router in it: the bits of route and moe one after the other, ids and
 * weights too, whoever makes the choice. Without a device: need_device.h. */
#include "moe_layer.h"

enum { D_MODEL = 512 };

static struct mote_rng rng;

/* Rows through route and moe, or through moe alone. */
struct routed {
    float *y, *weights; /* [n][d_model], [n][n_used] */
    int32_t *ids;
};

static void run_routed(struct mote_backend *backend, struct mote_moe job, const struct mote_route *route,
                       int is_inside, struct routed *out)
{
    const struct mote_backend_ops *ops = backend->ops;
    size_t pairs = (size_t)(job.n_row * job.n_used);
    poison(out->weights, (int64_t)pairs);
    must(ops->upload(backend, route->weights, out->weights, pairs * sizeof(float)));
    must(ops->upload(backend, route->ids, out->weights, pairs * sizeof(float)));
    poison(out->y, job.n_row * job.d_model);
    must(ops->upload(backend, job.y, out->y, (size_t)(job.n_row * job.d_model) * sizeof(float)));
    begin_rows(backend, job.n_row);
    job.route = is_inside ? route : NULL;
    if (!is_inside) must(ops->route(backend, route));
    must(ops->moe(backend, &job));
    get_floats(backend, out->y, job.y, job.n_row * job.d_model);
    get_floats(backend, out->weights, route->weights, (int64_t)pairs);
    must(ops->download(backend, out->ids, route->ids, pairs * sizeof *out->ids));
}

static struct routed new_routed(int64_t n, const struct shape *s)
{
    return (struct routed){new_floats(n * s->d_model), new_floats(n * s->n_used),
                           malloc((size_t)(n * s->n_used) * sizeof(int32_t))};
}
static void routed_free(struct routed *r)
{
    free(r->y), free(r->weights), free(r->ids);
}

/* The same bits of y, ids and weights; a row alone is where the experts' kernels choose. What they choose by is right:
 * test_cuda_route.c. */
static void test_route_inside(void **state)
{
    (void)state;
    need_device();
    static const struct {
        struct shape shape;
        struct recipe recipe;
        struct mote_routing routing;
        int is_biased;
        enum mote_format router;
    } rows[] = {
#define ROUTING(e, k, s, groups, used, renormalised, factor) \
    {.n_expert = e,                                          \
     .n_used = k,                                            \
     .score = MOTE_SCORE_##s,                                \
     .n_group = groups,                                      \
     .n_group_used = used,                                   \
     .renormalise = renormalised,                            \
     .scale = factor}
        {{128, 8, 512, 256, 0}, ALL(Q4_K), ROUTING(128, 8, SOFTMAX, 1, 1, 1, 1), 0, MOTE_FORMAT_F32},
        {{60, 4, 512, 256, 256}, ALL(IQ2_XXS), ROUTING(60, 4, SOFTMAX, 1, 1, 0, 1), 0, MOTE_FORMAT_F32},
        {{32, 4, 512, 96, 0}, ALL(MXFP4), ROUTING(32, 4, SOFTMAX_TOPK, 1, 1, 0, 1), 0, MOTE_FORMAT_BF16},
        {{256, 8, 512, 256, 256}, ALL(TQ1_0), ROUTING(256, 8, SIGMOID, 8, 4, 1, 2.5f), 1, MOTE_FORMAT_F32},
        {{512, 10, 512, 256, 0}, ALL(Q8_0), ROUTING(512, 10, SOFTMAX, 1, 1, 1, 1), 0, MOTE_FORMAT_F16},
        {{60, 4, 512, 256, 0}, ALL(Q8_0), ROUTING(60, 4, SOFTMAX, 1, 1, 1, 1), 1, MOTE_FORMAT_F32},
        /* nobody who could choose inside: plain experts, a router in tiles */
        {{32, 4, 512, 256, 0}, ALL(F16), ROUTING(32, 4, SOFTMAX, 1, 1, 1, 1), 0, MOTE_FORMAT_F32},
        {{32, 4, 512, 256, 0}, ALL(Q4_K), ROUTING(32, 4, SOFTMAX, 1, 1, 1, 1), 0, MOTE_FORMAT_Q8_0},
#undef ROUTING
    };
    static const int64_t counts[] = {1, 2, 17, 100};
    enum { N = sizeof rows / sizeof *rows, MOST = 100 };
    static const struct mote_backend_limits limits = {.max_row = MAX_ROW,
                                                      .max_col = D_MODEL,
                                                      .d_model = D_MODEL,
                                                      .n_ff = 256,
                                                      .n_ff_shared = 256,
                                                      .n_expert = 512,
                                                      .n_used = 10,
                                                      .act_moe = 7,
                                                      .act_down = 7};
    struct report report;
    mote_rng_seed(&rng, 47);
    report_begin(&report);
    struct mote_backend *backend[2];
    for (int v = 0; v < 2; v++) backend[v] = open_backend(&mote_backend_cuda, &limits, NULL, v);
    for (int i = 0; i < (quick() ? 2 : N); i++) {
        const struct shape *s = &rows[i].shape;
        struct layer l;
        struct input in;
        report_subject(&report);
        layer_make(&rng, &l, s, &rows[i].recipe);
        input_make(&rng, &in, s, UNIFORM);
        struct matrix router =
                          matrix_make(&rng, rows[i].router, s->n_expert, s->d_model, 0, MOTE_FORMAT_F16, 1),
                      gate = matrix_make(&rng, rows[i].router, 1, s->d_model, 0, MOTE_FORMAT_F16, 1);
        float *norm = new_normals(&rng, s->d_model), *bias = new_normals(&rng, s->n_expert);
        struct routed want = new_routed(MOST, s), got = new_routed(MOST, s), fused = new_routed(1, s);
        for (int v = 0; v < 2; v++) {
            struct mote_backend *b = backend[v];
            struct mote_routing routing = rows[i].routing;
            struct mote_weight router_weight = {.name = "router", .w = router.m},
                               gate_weight = {.name = "gate", .w = gate.m};
            struct placed placed;
            struct memory m;
            l.experts.routing = &routing;
            must(b->ops->place(b, &router_weight));
            must(b->ops->place(b, &gate_weight));
            must(b->ops->place_routing(b, &routing, &router_weight));
            must(layer_place(&l, b, &placed));
            make_ready(b);
            memory_make(&m, b, &in, MOST);
            float *device_norm = put_floats(b, norm, s->d_model), *h = put_floats(b, NULL, MOST * s->d_model),
                  *logits = put_floats(b, NULL, (int64_t)MOST * s->n_expert);
            routing.bias = rows[i].is_biased ? put_floats(b, bias, s->n_expert) : NULL;
            for (size_t z = 0; z < sizeof counts / sizeof *counts; z++) {
                int64_t n = counts[z];
                struct mote_linear linear = {
                    .n_row = n,
                    .n_col = s->d_model,
                    .x = m.residual,
                    .norm = device_norm,
                    .eps = 1e-6f,
                    .norm_out = h,
                    .n_out = 1 + (s->n_ff_shared > 0),
                    .out = {{&router_weight, logits, s->n_expert, NULL}, {&gate_weight, m.gate, 1, NULL}}};
                struct mote_route route = {.routing = &routing,
                                           .router = &linear,
                                           .layer = 5,
                                           .n_row = n,
                                           .logits = logits,
                                           .ids = m.ids,
                                           .weights = m.weights};
                struct mote_moe job = job_of(&placed, s, &m, 0, n);
                job.x = h;
                size_t pairs = (size_t)(n * s->n_used) * sizeof(int32_t),
                       bytes = (size_t)(n * s->d_model) * sizeof(float);
                run_routed(b, job, &route, 0, &want);
                for (int again = 0; again < 2; again++) {
                    run_routed(b, job, &route, 1, &got);
                    report.n_case++;
                    if (memcmp(got.ids, want.ids, pairs) || memcmp(got.weights, want.weights, pairs) ||
                        memcmp(got.y, want.y, bytes))
                        report_failure(&report, "%s E %d variant %d rows %lld: routed inside, other%s%s%s",
                                       recipe_name(&l.recipe), s->n_expert, v, (long long)n,
                                       memcmp(got.ids, want.ids, pairs) ? " ids" : "",
                                       memcmp(got.weights, want.weights, pairs) ? " weights" : "",
                                       memcmp(got.y, want.y, bytes) ? " y" : "");
                }
                if (n > 1) continue;
                if (v && memcmp(got.y, fused.y, bytes))
                    report_failure(&report, "%s E %d: routed inside, unfused differs", recipe_name(&l.recipe),
                                   s->n_expert);
                memcpy(fused.y, got.y, bytes);

                job.hidden = m.hidden; /* one product at a time, which reads the ids */
                run_routed(b, job, &route, 1, &got);
                if (memcmp(got.y, want.y, bytes))
                    report_failure(&report, "%s: tapped, other y", recipe_name(&l.recipe));
                job.hidden = NULL;

                struct mote_routing other = routing; /* not the one that the kernels know */
                other.n_used = 1, other.n_group_used = other.n_group;
                must(b->ops->place_routing(b, &other, &router_weight));
                make_ready(b);
                route.routing = &other, job.n_used = 1;
                run_routed(b, job, &route, 0, &want);
                run_routed(b, job, &route, 1, &got);
                if (memcmp(got.ids, want.ids, 4) || memcmp(got.y, want.y, bytes))
                    report_failure(&report, "%s: another routing, other y", recipe_name(&l.recipe));
                route.routing = &routing, job.n_used = s->n_used;

                float kept = in.residual[9], none = NAN;
                must(b->ops->upload(b, m.residual + 9, &none, sizeof none));
                begin_rows(b, 1);
                job.route = &route;
                mote_status status = b->ops->moe(b, &job);
                must_fail(status == MOTE_OK ? b->ops->sync(b) : status, MOTE_NUMERIC, "layer 5");
                must(b->ops->upload(b, m.residual + 9, &kept, sizeof kept));
            }
            float *all[] = {device_norm, h, logits, (float *)(uintptr_t)routing.bias};
            for (size_t j = 0; j < sizeof all / sizeof *all; j++) take_back(b, all[j]);
            memory_free(&m);
            layer_unplace(&placed);
            b->ops->unplace(b, router_weight.placed);
            b->ops->unplace(b, gate_weight.placed);
        }
        free(norm), free(bias);
        routed_free(&want), routed_free(&got), routed_free(&fused);
        matrix_free(&router), matrix_free(&gate);
        input_free(&in);
        layer_free(&l);
    }
    for (int v = 0; v < 2; v++) backend[v]->ops->destroy(backend[v]);
    report_end(&report, "routed inside");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_route_inside)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
