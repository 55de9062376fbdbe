/* codec_tuner.h - chooses the codec of tensors declared with codec "auto"; compress/tuner decides.
 *
 *     first step_begin   measure   every rank times the candidates on samples; the link is that of the job's
 *                                  link table (session->link.cost), or the ranks time it together
 *                        decide    rank 0, from the figures of all ranks; broadcast, in force from this step
 *     every CLIENT_CODEC_TUNER_PERIOD_STEPS steps
 *       step s           gather the figures of the steps before
 *       step s + 1       rank 0 decides and broadcasts (revision, choices)
 *       step s + 2       in force on all ranks: every rank's step_end has waited for the broadcast
 *
 * Caller's thread, between steps; the engine adds to `traffic` while a step is open. */
#ifndef WEFT_CLIENT_TENSOR_CODEC_TUNER_H
#define WEFT_CLIENT_TENSOR_CODEC_TUNER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "compress/compress.h"
#include "weft/weft.h"

#define CLIENT_CODEC_TUNER_PERIOD_STEPS 8u

struct weft_session;
struct weft_tensor;

/* Choice of one tensor; in struct weft_tensor. */
struct client_codec_choice {
    struct weft_codec_candidates candidates; /* count 0: the codec is fixed */
    struct weft_codec_cost costs[WEFT_CODEC_CANDIDATES_MAX];
    uint8_t chosen;
    uint32_t changes;
    uint64_t since_step, coded_steps;
    double saved_bytes, saved_ns;            /* against dense, over all steps, estimated */
    double ready_ns;                         /* summed since the last decision */
    uint32_t ready_count;
};

enum { CLIENT_DECISION_REVISION, CLIENT_DECISION_PROBE_BYTES, CLIENT_DECISION_CHOICES };
enum client_codec_tuner_phase {
    CLIENT_CODEC_TUNER_IDLE = 0,
    CLIENT_CODEC_TUNER_GATHERING,
    CLIENT_CODEC_TUNER_BROADCASTING
};

/* The link between the ranks, from the link table or measured. */
struct client_codec_tuner_link {
    double latency_ns, bytes_per_second;
    uint64_t probed_ns;                            /* time of the last measurement */
    bool latency_from_table, bandwidth_from_table; /* not replaced by a measurement yet */
};

/* State of the session. */
struct client_codec_tuner {
    struct weft_tensor **tensors;                  /* (count,) owned: tensors with candidates, in declaration
                                                    * order */
    uint32_t count, capacity;
    bool measured;
    uint32_t epoch;                                /* membership that has measured; another one measures
                                                    * again, and makes all codecs anew */
    uint32_t revision;                             /* in force; incremented by each change. In every step's
                                                    * record, so ranks with different choices fail */
    uint64_t revised_step;                         /* step in which it took effect */
    struct client_codec_tuner_link link;
    double steal;
    enum client_codec_tuner_phase phase;

    /* figures of the steps since the last decision that ran completely under the present choices */
    double step_ns[CLIENT_CODEC_TUNER_PERIOD_STEPS], compute_ns[CLIENT_CODEC_TUNER_PERIOD_STEPS];
    uint32_t step_count;
    double rate_max;                  /* bytes per second, of steps that moved at least
                                       * RATE_SAMPLE_BYTES_MIN */
    struct client_codec_traffic {     /* of the open step; written by the engine */
        double moved_bytes, coded_ns; /* bytes over the link; estimated ns of codec work in the meantime */
        double return_bytes;          /* largest number of bytes that one exchange still receives when its own
                                       * are sent */
        uint64_t busy_ns, busy_since_ns;
        uint32_t running;
    } traffic;

    /* exchanged figures, and what rank 0 decides from; owned */
    double *mine, *all;                      /* (words,), (ranks * words,) */
    uint64_t words;
    int64_t *decision;                       /* (CLIENT_DECISION_CHOICES + count,): revision, bytes of the
                                              * next probe, choices */
    struct weft_codec_tuner *tuner;
    struct weft_codec_tuner_tensor *figures; /* (count,) */
    uint32_t *order;
    struct weft_request gather_request, decision_request;
};

/* Adds a tensor that has candidates. Caller's thread. WEFT_ERR_NO_MEMORY. */
enum weft_status client_codec_tuner_add(struct weft_session *session, struct weft_tensor *tensor);
/* between steps; the next step measures again */
void client_codec_tuner_remove(struct weft_session *session, const struct weft_tensor *tensor);
void client_codec_tuner_free(struct weft_session *session);
/* Call from step_begin before anything of the step is posted. Blocks while all ranks measure: in the first
 * step, and after a tensor was declared or the membership changed. WEFT_ERR_PEER_LOST: a rank was lost
 * meanwhile. Caller's thread. */
enum weft_status client_codec_tuner_step_begin(struct weft_session *session, uint64_t step);
/* Call from step_end after a good step. Caller's thread. */
void client_codec_tuner_step_end(struct weft_session *session, uint64_t step_ns, uint64_t exposed_ns);
/* Call from push_pull. Caller's thread. */
void client_codec_tuner_tensor_ready(struct weft_tensor *tensor);
/* Call when the tensor's exchange is posted, and when it has completed. Engine thread. */
void client_codec_tuner_exchange_posted(struct weft_tensor *tensor);
void client_codec_tuner_exchange_completed(struct weft_tensor *tensor);

/* Logs the choices and their savings at level info; from weft_finalize. Caller's thread. */
void client_codec_tuner_report(struct weft_session *session);

/* codec_tuner_measure.c: measures costs of all candidates, latency, bandwidth, steal. Blocks. Equal results
 * on all ranks. */
enum weft_status client_codec_tuner_measure(struct weft_session *session);
/* Returns one rank's ns for a round that the ranks combine in slices. combine_ns: of one combiner for all
 * elements, which returned `aggregate`. Without memory, packing counts 0 ns. */
double client_codec_tuner_sliced_ns(struct weft_env *env, const struct weft_slices *slices,
                                    const void *aggregate, size_t aggregate_bytes, double combine_ns);
/* Averages the measured bandwidth with the present one (geometric mean); replaces the link table's. */
void client_codec_tuner_add_bandwidth(struct client_codec_tuner *codec_tuner, double bytes_per_second);
/* Measures the bandwidth by one all-reduce of `bytes`, and the latency if it is the link table's. Blocks.
 * Equal results on all ranks. */
enum weft_status client_codec_tuner_probe(struct weft_session *session, size_t bytes);
#define CLIENT_PROBE_BYTES_MIN ((size_t)1 << 20)
#define CLIENT_PROBE_BYTES_MAX ((size_t)16 << 20)

#endif
