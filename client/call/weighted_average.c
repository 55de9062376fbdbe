/* weighted_average.c - averages weighted by samples: sum(w*x) / sum(w).
 *
 *     call ──► all_reduce of the weights (two f64, tree T) ──► total
 *          ──► the call as a scaled sum: factor w, divided by the total
 *
 * Both operations enter the group's queue together, so their order is equal on all ranks. The call is not
 * ready until the weights have arrived. All ranks divide by the same number: the f64 sum of the weights by T,
 * which is exact for counts of samples.
 *
 * Factor and total are divided by the power of two at or above the largest weight. This changes no bit of the
 * result unless it under- or overflows. No factor exceeds 1, so no product overflows. Equal weights that are
 * a power of two give the bits of the plain average.
 *
 * The exponent of the largest weight is found by the second f64. With 2^k above twice the ranks, each rank
 * adds 2^(k e) for a weight of exponent e: the sum lies in [2^(k E), 2^(k (E + 1))), E the largest
 * exponent. */
#include <math.h>
#include <stdio.h>

#include "client/call/call.h"
#include "client/call/calls.h"
#include "client/engine/engine.h"
#include "client/engine/group.h"
#include "client/engine/request.h"
#include "client/session/failure.h"
#include "client/session/session.h"

struct client_weighted_average {
    struct weft_list link; /* calls->weighted_averages, while idle */
    struct client_request *request;
    struct client_group_op op;
    double weight[2], total[2]; /* the weight, and the power of two that carries its exponent */
};

static uint32_t ranks_of(const struct client_request *request)
{
    return request->op.comm ? request->op.comm->ranks : request->session->ranks;
}

/* The least e with 2^e at or above x > 0. */
static int exponent_above(double x)
{
    int exponent;
    return frexp(x, &exponent) == 0.5 ? exponent - 1 : exponent;
}

/* k with 2^k above twice the ranks, so that rounding does not reach the next power. */
static int exponent_unit(uint32_t ranks) { return 34 - __builtin_clz(ranks); }

/* Exponents beyond the range of an f64 are clamped. */
static double exponent_power(double weight, uint32_t ranks)
{
    const int unit = exponent_unit(ranks), most = 960 / unit;
    if (!(weight > 0)) return 0;
    int exponent = exponent_above(weight);
    if (exponent > most) exponent = most;
    if (exponent < -most) exponent = -most;
    return ldexp(1, unit * exponent);
}

/* Exponent of the largest weight. If it was clamped, that of the sum of weights, which is at least as
 * large. */
static int exponent_largest(double total, double powers, uint32_t ranks)
{
    const int unit = exponent_unit(ranks), most = 960 / unit;
    const int largest = (int)floor((double)ilogb(powers) / unit);
    return largest > -most && largest < most ? largest : exponent_above(total);
}

void client_weighted_average_args(const struct client_request *request, struct weft_coll_args *args)
{
    uint32_t ranks = ranks_of(request);
    if (ranks == 1 && request->average.total > 0) return; /* the mean of one rank is its input */
    const int exponent = request->average.exponent;
    args->op = WEFT_SCALED_SUM;
    args->factor = ldexp(request->average.factor, -exponent);
    args->total = ldexp(request->average.total, -exponent);
}

static void weighted_average_release(struct client_weighted_average *average)
{
    weft_list_append(&average->op.session->calls->weighted_averages, &average->link);
    average->request = NULL;
}

static void on_weights(struct client_group_op *op, enum weft_status status, const char *text)
{
    struct client_weighted_average *average = weft_container_of(op, struct client_weighted_average, op);
    struct client_request *request = average->request; /* in a failed session it may be the caller's again */
    if (op->session->engine->failed) { /* the engine completes the call itself */
        weighted_average_release(average);
        return;
    }
    if (status < 0) {
        client_call_failed(op, status, text); /* runs this function again */
        return;
    }
    request->average.total = average->total[0];
    if (request->average.total > 0 && isfinite(request->average.total))
        request->average.exponent =
            exponent_largest(request->average.total, average->total[1], ranks_of(request));
    weighted_average_release(average);
    if (request->average.total > 0 && isfinite(request->average.total)) {
        request->op.ready = true; /* client_engine_group_op_done pumps the queue next */
        return;
    }
    char sentence[200];
    snprintf(sentence, sizeof sentence, "%s: the weights of all ranks sum to %g: there is no mean",
             weft_coll_kind_name((enum weft_coll_kind)request->args.kind), request->average.total);
    weft_list_remove(&request->op.link);
    client_request_complete(request, WEFT_ERR_INVALID, sentence);
}

static enum weft_status post_weight(struct client_group_op *op, struct weft_error *error)
{
    struct client_weighted_average *average = weft_container_of(op, struct client_weighted_average, op);
    const struct client_request *request = average->request;
    struct weft_coll_args args = {
        .kind = WEFT_COLL_ALL_REDUCE,
        .in = average->weight,
        .out = average->total,
        .count = 2,
        .dtype = WEFT_F64,
        .op = WEFT_SUM,
        .reproducible = true,
        .deadline_ns = request->args.deadline_ns,
        .posted_ns = request->is_next ? request->started_ns : 0,
    };
    return weft_coll_post(client_request_group(request), &args, client_engine_group_op_done, op, &op->coll,
                          error);
}

/* An idle one, or a new one: calls that run at the same time need one each. NULL: no memory. */
static struct client_weighted_average *weighted_average_alloc(struct weft_session *session)
{
    struct weft_list *idle = &session->calls->weighted_averages;
    if (weft_list_empty(idle)) return weft_alloc_zero(session->env, sizeof(struct client_weighted_average));
    struct client_weighted_average *average = weft_list_first(idle, struct client_weighted_average, link);
    weft_list_remove(&average->link);
    return average;
}

void client_weighted_average_start(struct client_request *request)
{
    struct weft_session *session = request->session;
    struct client_weighted_average *average = weighted_average_alloc(session);
    if (!average) {
        client_request_complete(request, WEFT_ERR_NO_MEMORY, "no memory for a weighted average");
        client_fail(session, WEFT_ERR_NO_MEMORY, true, "rank %u: no memory for a weighted average",
                    session->rank);
        return;
    }
    weft_list_init(&average->link);
    average->request = request;
    average->weight[0] = request->average.factor;
    average->weight[1] = exponent_power(request->average.factor, ranks_of(request));
    average->op = (struct client_group_op){
        .ready = true, .post = post_weight, .done = on_weights, .session = session, .comm = request->op.comm};
    weft_list_init(&average->op.link);
    request->op.ready = false;
    weft_list_append(client_engine_group_queue(&average->op), &average->op.link);
    client_engine_queue_group_op(session, &request->op); /* pumps, and so posts the weights */
}

void client_weighted_averages_free(struct weft_session *session)
{
    while (!weft_list_empty(&session->calls->weighted_averages)) {
        struct client_weighted_average *average =
            weft_list_first(&session->calls->weighted_averages, struct client_weighted_average, link);
        weft_list_remove(&average->link);
        weft_free_bytes(session->env, average);
    }
}
