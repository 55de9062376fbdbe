/* sim_job_seeds.c - whole elastic jobs in one process and in virtual time: the client as trainers call it
 * (weft_init ... weft_finalize, each on its own stack), its control connection, the coordinator and the
 * transport.
 *
 * A seed selects the number of workers and its bounds; deaths (visible at once, or silent), broken links,
 * newcomers, ranks that run out of data and join, an abort, the speed of ranks and messages, hosts that are
 * stopped and continue (perhaps after the job has given them up), and partitions between workers, or from the
 * coordinator. Each worker runs steps: the members' numbers, sums in place and out of place, a weighted mean,
 * a codec.
 *
 * Checks:
 *   - every program ends in bounded virtual time (no hang);
 *   - ranks that complete a step agree on its members, their order, and the bits of every result; exact and
 *     reproducible sums equal the scalar reference over these members; weighted means have the members'
 *     weights;
 *   - a rank misses no step between two that it takes part in, and a repeated step finds its inputs
 *     unchanged;
 *   - the members change only after a call has reported it; a waiting newcomer enters at the end of a step;
 *     residuals of a codec are for the number of members, its random draws for its rank, and its step count
 *     equals the others';
 *   - any other end has a status that a fault explains and a text that names a culprit; a rank that was given
 *     up and continues ends, too, and changes nothing for the others.
 * A failing seed prints the command that replays it.
 *
 *     sim_job_seeds [--seeds N] [--first S] [--found] [--updates] [--auto-codec] [--shards] [--newcomers]
 *     [--coded] [--copies] [--moves] [--breaks] [--separate] [--still] [--frees]
 *     [--verbose]
 *
 * --still: a host's clock does not advance during a callback.
 * --found: the seeds that found a bug, with --still, before the others.
 * --updates: one more tensor with an optimizer. Its weights and arrays equal an update that the test
 * computes from the members' gradients; after a discarded step, the values before it. New ranks, and all
 * at the start, get them from one rank.
 * --shards: shards (weftd_run) keep the mean and the tensor with an optimizer. --newcomers: new workers join
 * such a job, too. Some shards
 * get messages of the coordinator late, or are stopped or cut off for some time. Each chunk of a step is
 * the mean or update of the members of one try of that step, to the bit, and equal on all ranks. After a
 * rest, ranks get from the shards what such tries made of the state that they knew.
 * --coded: the shards keep the tensor with a codec, too; in half of the jobs it has an optimizer. Ranks and
 * shards have equal weights of it after each step (hashes), and a discarded step leaves weights and arrays as
 * before, on ranks and shards.
 * --copies: shards with copies. One shard dies, visibly or silently, and that ends no job.
 * --moves: the same with three shards, and ranks that rest between steps, so that copies are made again while
 * the members change.
 * --breaks: beside the faults, the network breaks control connections by chance, which changes no end.
 * --frees: one more tensor, declared first, which all ranks free after step 3. Of the ranks that continue,
 * all have freed it or none; new ranks declare the tensors that are left.
 * --separate: the coordinator cannot read whether a process is dead, as on other hosts.
 * --auto-codec: codec "auto", chosen anew by each membership: the ranks of a step have equal codecs, sums and
 * counts. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/client.h"
#include "client/engine/engine.h"
#include "client/session/membership.h"
#include "client/session/session.h"
#include "client/tensor/tensor.h"
#include "compress/codec.h"
#include "server/server.h"
#include "tests/sim/arena.h"
#include "tests/sim/seed.h"
#include "tests/sim/sim_host_faults.h"
#include "tests/sim/sim_net.h"
#include "tests/sim/sim_process.h"

enum { HAND = 0, COORDINATOR = 1, FIRST_WORKER = 2 }; /* hosts; HAND runs the faults */
enum {
    WORKERS_MAX = 12,
    SHARDS_MAX = 3,
    TRIES_MAX = 16,
    CHUNK = 256,
    CHUNKS_MAX = 3,
    HOSTS = FIRST_WORKER + WORKERS_MAX + SHARDS_MAX,
    STEPS_MAX = 200,
    COUNT_MAX = 700,
    ROUNDS_MAX = 3
};

#define DEADLINE_NS WEFT_SECONDS(20) /* of operations */
#define AUTO_CODEC "auto:topk:ratio=0.05,min_count=0,randomk:ratio=0.01,min_count=0,int8:min_count=0"
#define TOLD_NS WEFT_SECONDS(1) /* by then all ranks know of a visible death */

static const uint64_t found[] = {
    /* some of five ranks were cut off from each other: a fifth, one operation further, reported that four
     * ranks had not called it, without a reason */
    98310,
    655, /* a rank was abandoned and took that for a loss of the coordinator */
    /* a newcomer was notified of a rank lost during its rest, in the membership that it had entered with,
     * and left it */
    11339,
    /* a rank that rested while the coordinator was stopped got the others' deadline from weft_join as
     * WEFT_ERR_ABORTED */
    83483,
    84403, /* three of four ranks died; one of them knew the end of a step, and the fourth ran it again */
    /* some ranks know that a step is good, others learn it only when they agree on a loss: the next
     * step_begin must report it to all */
    327,
    /* some ranks learned that a step was good after the members had changed, and their codecs had advanced
     * with the next step */
    603705,
    /* a rank got a loss and an abort at once: its step_end ended by the loss, and would then have
     * described how the job continues */
    965995,
    54663, /* weft_join, which returned OK, and the first step_begin both reported the same newcomer */
    /* a rank knew that its last step was good, was cut off permanently, and left: the others ran that step
     * again */
    4016990,
};

static const uint64_t found_with_shards[] = {
    /* with --updates */
    76,     /* a rank returned from its rest and waited for the shards' weights of before the rest */
    146482, /* all active ranks were lost, some steps further than the resting ones */
    /* two tries of a step made equal weights of different gradients; the test attributed the shards'
     * result to the wrong try */
    1267355,
    /* a deadline of weft_tensor_init left an operation in its stack frame, which the engine ended later */
    204942,
};

static bool coded_too;     /* --coded: shards keep the tensor with a codec */
static bool newcomers_too; /* --newcomers: new workers join a job with shards */
static bool with_copies;   /* --copies */
static bool with_moves;    /* --moves */
static bool with_frees;    /* --frees */
static bool still;         /* the clock of this seed's hosts does not advance during a callback */

/* ---- one seed ---- */
/* End of a program. */
enum ending { RUNS, FINISHED, FAILED, REFUSED };

struct worker {
    uint32_t host;
    uint64_t after_ns;             /* start time; newcomers start while the job runs */
    bool newcomer, killed, trains; /* trains: it has declared all tensors */
    uint64_t trains_ns;            /* time of that */
    uint32_t slow;                 /* computes for up to this many microseconds between two calls */
    bool apart;                    /* stopped or cut off from the coordinator long enough to be abandoned */
    /* it left in order while cut off: the coordinator did not learn that and gave it up */
    bool unheard;
    uint32_t data[ROUNDS_MAX]; /* steps until it runs out of data, in each round */
    struct weft_tensor *brief; /* the tensor of --frees; NULL: freed */
    struct weft_session *session;
    struct weft_request requests[6]; /* not on the stack: after a failed wait weft_finalize ends them */
    enum ending ending;
    enum weft_status status;
    bool rests; /* in weft_join */
    bool late;  /* it ended by a loss, and learned that much later */
    char text[480];
    /* of the program */
    bool take; /* all ranks take the state of one rank before they continue */
    bool due;  /* ranks have entered or returned, and no step has been good since */
    uint64_t newest[WORKERS_MAX];
    uint64_t state;                      /* last step in its state */
    uint64_t committed;                  /* its last good step; 0: none, or it has rested */
    bool was_notified;                   /* a call has reported lost or new ranks since then */
    bool knew;                           /* when that step began, a call had reported a waiting newcomer */
    uint32_t members, born[WORKERS_MAX]; /* of that step */
    uint64_t filled;                     /* step whose inputs are filled, unless it was good */
    uint64_t round;
    uint32_t ran;  /* steps of this round */
    uint64_t last; /* the last step that it completed; members and results of each step */
    uint64_t bits[STEPS_MAX];
    /* step count of its codec, plus one; 0: it learned that the step was good after the members changed */
    uint64_t counted[STEPS_MAX];
};

/* Members of a step. */
struct step_record {
    uint32_t members, born[WORKERS_MAX];
};

static struct run {
    uint64_t seed;
    uint32_t workers, newcomers, workers_min, workers_max, rounds, goal, count, shards;
    struct worker all[WORKERS_MAX];
    struct weft_sim *sim;
    struct weft_loop *hand; /* the loop of HAND */
    bool all_done, coordinator_killed, job_ended, joins, updates, auto_codec;
    uint64_t chosen;   /* steps with a codec that the codec tuner chose */
    bool killed_early; /* a rank died before all had declared their tensors: that ends a job */
    bool silence;      /* a rank died silently, or was slow, stopped or cut off */
    uint64_t suspects; /* hosts that were stopped or cut off, as bits */
    bool cut_long;     /* a cut between workers for about a deadline */
    uint64_t apart_ns; /* the first fault that may give a rank up or time an operation out */
    /* the same for a shard: a lost shard ends the job, and ranks wait for one that is cut off */
    bool shard_apart;
    /* stopped so long that members may seem silent, or that a rank that asks it gives up */
    bool coordinator_apart;
    uint64_t heartbeat_ns;
    uint64_t gone_ns;            /* time of the last kill, leave or broken link */
    const struct worker *cut[2]; /* the link between these two is broken */
    uint32_t kills;
    const struct worker *aborter;
    uint64_t shrunk, grew, steps_done, again, joined;
    uint64_t frees, frees_again; /* ranks that have freed the tensor; calls to repeat */
    uint32_t freed_in;           /* epoch in which it was freed; 0: it is not freed */
    struct weft_config *config; /* of the shards */
    /* members of each try of a step, as seen by the ranks that began it */
    struct step_record tries[STEPS_MAX][TRIES_MAX];
    /* 1 + the try that made a chunk of the tensor with an optimizer; 0: not seen yet */
    uint8_t made_of[STEPS_MAX][CHUNKS_MAX];
    /* chunks whose result is of an earlier try's members */
    uint64_t closed_before, moved_bytes;
    char why[1200];
} run;

struct fault {
    struct weft_timer timer;
    uint32_t host;
    bool silent, abort;
    uint32_t cut; /* the other host of the cut; 0: none */
    uint64_t stall_ns;
};

static void fail_seed(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void fail_seed(const char *format, ...)
{
    va_list list;
    if (run.why[0]) return;
    va_start(list, format);
    vsnprintf(run.why, sizeof run.why, format, list);
    va_end(list);
    run.all_done = true;
}

static void check_done(void)
{
    for (uint32_t i = 0; i < run.workers + run.newcomers; i++)
        if (!run.all[i].killed && run.all[i].ending == RUNS) return;
    run.all_done = true;
}

/* ---- the tries of a step ---- */

static uint32_t host_of_name(const char *name)
{
    const char *at = strstr(name, "(h");
    return at ? (uint32_t)strtoul(at + 2, NULL, 10) : 0;
}

static void note_try(const struct worker *worker, uint64_t step)
{
    struct step_record mine = {.members = weft_ranks(worker->session)};
    char name[128];
    for (uint32_t r = 0; r < mine.members && step < STEPS_MAX; r++) {
        client_rank_name(worker->session, r, name, sizeof name);
        mine.born[r] = host_of_name(name);
    }
    for (uint32_t i = 0; i < TRIES_MAX && step < STEPS_MAX; i++) {
        struct step_record *one = &run.tries[step][i];
        if (one->members == 0) *one = mine;
        if (memcmp(one, &mine, sizeof mine) == 0) return;
    }
    fail_seed("h%u: step %llu is tried too often for this test", worker->host, (unsigned long long)step);
}

/* ---- inputs and expected results ---- */

static float input_of(uint32_t born, uint64_t step, uint32_t tensor, uint32_t i)
{
    uint64_t x = mix(born * 0x9e3779b97f4a7c15ull + step * 0x2545f4914f6cdd1dull + tensor * 77 + i + 1);
    float fraction = (float)(int32_t)(uint32_t)x * 0x1p-31f;
    return x >> 60 ? fraction : fraction * 4096;
}

static float weight_of(uint32_t born, uint64_t step)
{
    return 0.5f * (float)(1 + (born + step) % 4);
}

/* The tree over [a, b) of the members, as docs/collectives.md defines it. */
static float tree_sum(const struct step_record *record, uint32_t a, uint32_t b, uint64_t step,
                      uint32_t tensor, uint32_t i)
{
    if (b - a == 1)
        return tensor == 0 ? input_of(record->born[a], step, 0, i)
                           : weight_of(record->born[a], step) * input_of(record->born[a], step, tensor, i);
    uint32_t half = 1;
    while (half * 2 < b - a) half *= 2;
    return tree_sum(record, a, a + half, step, tensor, i) + tree_sum(record, a + half, b, step, tensor, i);
}

struct buffers {
    float in_place[COUNT_MAX], grad[COUNT_MAX], mean[COUNT_MAX], coded[COUNT_MAX];
    int64_t whole[8], whole_out[8];
    uint32_t born[WORKERS_MAX];
    float grads[COUNT_MAX], weights[COUNT_MAX];            /* of the tensor with an optimiser */
    float model[1 + WEFT_OPTIMIZER_STATES_MAX][COUNT_MAX]; /* expected weights and arrays */
    /* weights and arrays of the coded tensor after its last good step, or as they were shared */
    float coded_before[1 + WEFT_OPTIMIZER_STATES_MAX][COUNT_MAX];
    uint64_t behind[CHUNKS_MAX]; /* last step in each chunk of them, if shards keep it */
};

static float *array_of(const struct weft_tensor *tensor, struct buffers *b, uint32_t which)
{
    return which == 0 ? b->weights : tensor->arrays.states[which - 1];
}

/* ---- the tensor with a codec, if it has an optimizer ---- */

static float *coded_array(const struct weft_tensor *tensor, struct buffers *b, uint32_t which)
{
    return which == 0 ? b->coded : tensor->arrays.states[which - 1];
}

static bool coded_updates(const struct weft_tensor *tensor)
{
    return tensor->options.optimizer.kind != WEFT_OPTIMIZER_NONE;
}

static void keep_coded(const struct weft_tensor *tensor, struct buffers *b)
{
    for (uint32_t s = 0; s <= weft_optimizer_states(&tensor->options.optimizer) && coded_updates(tensor); s++)
        memcpy(b->coded_before[s], coded_array(tensor, b, s), run.count * sizeof(float));
}

static void check_coded(const struct worker *worker, const struct weft_tensor *tensor, struct buffers *b,
                        const char *when)
{
    for (uint32_t s = 0; s <= weft_optimizer_states(&tensor->options.optimizer) && coded_updates(tensor); s++)
        if (memcmp(coded_array(tensor, b, s), b->coded_before[s], run.count * sizeof(float)) != 0)
            fail_seed("h%u: %s, behind step %llu, array %u of the coded tensor is not as before",
                      worker->host, when, (unsigned long long)worker->state, s);
}

static void check_model(const struct worker *worker, const struct weft_tensor *tensor, struct buffers *b,
                        const char *when)
{
    /* otherwise the shards have the arrays */
    const uint32_t here = run.shards ? 0 : weft_optimizer_states(&tensor->options.optimizer);
    for (uint32_t s = 0; s <= here; s++)
        if (memcmp(array_of(tensor, b, s), b->model[s], run.count * sizeof(float)) != 0)
            fail_seed("h%u: %s, behind step %llu, array %u of the tensor with an optimiser is not what it "
                      "should be",
                      worker->host, when, (unsigned long long)worker->state, s);
}

static void follow_model(const struct worker *worker, const struct weft_tensor *tensor, struct buffers *b,
                         const struct step_record *record, uint64_t step)
{
    static float sum[COUNT_MAX];
    float *states[WEFT_OPTIMIZER_STATES_MAX];
    double weights = 0;
    for (uint32_t r = 0; r < record->members; r++) weights += (double)weight_of(record->born[r], step);
    for (uint32_t i = 0; i < run.count; i++) sum[i] = tree_sum(record, 0, record->members, step, 2, i);
    for (uint32_t s = 0; s < WEFT_OPTIMIZER_STATES_MAX; s++) states[s] = b->model[1 + s];
    weft_optimizer_step(&tensor->options.optimizer, 1, step, b->model[0], states, sum,
                        client_grad_scale((float)weights), run.count);
    check_model(worker, tensor, b, "updated");
}

/* ---- tensors that shards keep: the try whose members made each chunk ---- */

struct piece {
    const struct step_record *record;
    uint64_t step, offset, count;
    uint32_t tensor;    /* of input_of */
    uint32_t chunk, at; /* at: the try */
    float scale;        /* 1 / sum of the weights */
    float sum[COUNT_MAX];
};

static void piece_sum(struct piece *piece, const struct step_record *record)
{
    double weights = 0;
    for (uint32_t r = 0; r < record->members; r++) weights += (double)weight_of(record->born[r], piece->step);
    for (uint64_t i = 0; i < piece->count; i++)
        piece->sum[i] =
            tree_sum(record, 0, record->members, piece->step, piece->tensor, (uint32_t)(piece->offset + i));
    piece->record = record;
    piece->scale = client_grad_scale((float)weights);
}

static bool mean_fits(const struct weft_tensor *tensor, struct buffers *b, struct piece *piece)
{
    for (uint64_t i = 0; i < piece->count; i++) {
        const float mean = piece->sum[i] * piece->scale;
        if (memcmp(&mean, &b->mean[piece->offset + i], sizeof mean) != 0) return false;
    }
    return true;
}

/* Weights and arrays of a chunk. */
struct kept_chunk {
    float of[1 + WEFT_OPTIMIZER_STATES_MAX][CHUNK];
};

static void chunk_of_model(const struct buffers *b, const struct piece *piece, struct kept_chunk *out)
{
    for (uint32_t s = 0; s <= WEFT_OPTIMIZER_STATES_MAX; s++)
        memcpy(out->of[s], b->model[s] + piece->offset, piece->count * sizeof(float));
}

static void chunk_follows(const struct weft_tensor *tensor, const struct piece *piece,
                          struct kept_chunk *kept)
{
    float *states[WEFT_OPTIMIZER_STATES_MAX];
    for (uint32_t s = 0; s < WEFT_OPTIMIZER_STATES_MAX; s++) states[s] = kept->of[1 + s];
    weft_optimizer_step(&tensor->options.optimizer, 1, piece->step, kept->of[0], states, piece->sum,
                        piece->scale, piece->count);
}

/* The model is the state after this step, where the weights are. */
static bool chunk_fits(struct buffers *b, const struct piece *piece, const struct kept_chunk *kept,
                       uint64_t step)
{
    if (memcmp(kept->of[0], b->weights + piece->offset, piece->count * sizeof(float)) != 0) return false;
    for (uint32_t s = 0; s <= WEFT_OPTIMIZER_STATES_MAX; s++)
        memcpy(b->model[s] + piece->offset, kept->of[s], piece->count * sizeof(float));
    b->behind[piece->chunk] = step;
    return true;
}

static bool update_fits(const struct weft_tensor *tensor, struct buffers *b, struct piece *piece)
{
    static struct kept_chunk next;
    uint8_t *made_of = &run.made_of[piece->step][piece->chunk];
    chunk_of_model(b, piece, &next);
    if (b->behind[piece->chunk] == piece->step) {
        /* the shard had closed it when this rank read the weights */
        if (*made_of != 1 + piece->at) return false;
        return chunk_fits(b, piece, &next, piece->step);
    }
    if (*made_of && *made_of != 1 + piece->at) return false;
    chunk_follows(tensor, piece, &next);
    if (!chunk_fits(b, piece, &next, piece->step)) return false;
    *made_of = (uint8_t)(1 + piece->at);
    return true;
}

/* Returns whether a state that a rank reads from a shard after a rest is what some tries made of the state
 * that it knew, each step once. */
static bool walk_fits(const struct weft_tensor *tensor, struct buffers *b, struct piece *piece,
                      struct kept_chunk *from, uint64_t step, uint64_t last)
{
    static struct kept_chunk next[STEPS_MAX];
    if (chunk_fits(b, piece, from, step)) return true;
    if (step >= last) return false;
    for (uint32_t at = 0; at < TRIES_MAX && run.tries[step + 1][at].members; at++) {
        uint8_t *made_of = &run.made_of[step + 1][piece->chunk];
        const uint8_t before = *made_of;
        if (before && before != 1 + at) continue;
        piece->step = step + 1;
        piece_sum(piece, &run.tries[step + 1][at]);
        next[step] = *from;
        chunk_follows(tensor, piece, &next[step]);
        *made_of = (uint8_t)(1 + at);
        if (walk_fits(tensor, b, piece, &next[step], step + 1, last)) return true;
        *made_of = before;
    }
    return false;
}

/* From the state that it knew; if no step has closed, from the first weights. */
static void follow_kept(const struct worker *worker, const struct weft_tensor *tensor, struct buffers *b)
{
    static struct piece piece;
    static struct kept_chunk from;
    const uint64_t last = weft_step_next(worker->session);
    for (uint32_t c = 0; c < tensor->chunk_table.count; c++) {
        piece = (struct piece){.offset = tensor->chunk_table.chunks[c].offset,
                               .count = tensor->chunk_table.chunks[c].count,
                               .tensor = 2,
                               .chunk = c};
        chunk_of_model(b, &piece, &from);
        bool fits = walk_fits(tensor, b, &piece, &from, b->behind[c], last);
        for (uint32_t w = 0; !fits && b->behind[c] == 0 && w < run.workers + run.newcomers; w++) {
            memset(&from, 0, sizeof from);
            for (uint64_t i = 0; i < piece.count; i++)
                from.of[0][i] = input_of(run.all[w].host, 0, 3, (uint32_t)(piece.offset + i));
            fits = walk_fits(tensor, b, &piece, &from, 0, last);
        }
        if (!fits)
            fail_seed("h%u: before step %llu, chunk %u as the shard has it is not what the steps up to there "
                      "have made",
                      worker->host, (unsigned long long)last, c);
    }
}

/* If two tries make equal weights, prefers the one with live members: the arrays may differ by a bit,
 * which the next step shows. */
static void check_kept(const struct worker *worker, const struct weft_tensor *tensor, struct buffers *b,
                       const struct step_record *mine, uint64_t step, uint32_t input,
                       bool (*fits)(const struct weft_tensor *, struct buffers *, struct piece *))
{
    static struct piece piece;
    const struct step_record *tries = run.tries[step];
    uint32_t count = 0, own = 0;
    for (; count < TRIES_MAX && tries[count].members; count++)
        if (memcmp(&tries[count], mine, sizeof *mine) == 0) own = count;
    for (uint32_t c = 0; c < tensor->chunk_table.count; c++) {
        bool found_one = false;
        piece = (struct piece){.step = step,
                               .offset = tensor->chunk_table.chunks[c].offset,
                               .count = tensor->chunk_table.chunks[c].count,
                               .tensor = input,
                               .chunk = c};
        for (uint32_t i = 0; i < count && !found_one; i++) {
            piece.at = (own + i) % count;
            piece_sum(&piece, &tries[piece.at]);
            found_one = fits(tensor, b, &piece);
        }
        if (!found_one) {
            fail_seed("h%u: step %llu, chunk %u of tensor %s is of no try's members", worker->host,
                      (unsigned long long)step, c, tensor->name);
            return;
        }
        run.closed_before += piece.at != own;
    }
}

static void check_results(struct worker *worker, uint64_t step, uint32_t epoch, uint32_t ranks,
                          struct weft_tensor **tensors, struct buffers *b)
{
    struct step_record mine = {.members = ranks};
    memcpy(mine.born, b->born, ranks * sizeof *b->born);
    uint64_t hash = weft_fnv_bytes(1, mine.born, sizeof mine.born);
    hash = weft_fnv_bytes(hash, b->in_place, run.count * sizeof(float));
    hash = weft_fnv_bytes(hash, b->mean, run.count * sizeof(float));
    if (run.shards) check_kept(worker, tensors[0], b, &mine, step, 1, mean_fits);
    if (run.shards && run.updates) check_kept(worker, tensors[2], b, &mine, step, 2, update_fits);
    else if (run.updates) follow_model(worker, tensors[2], b, &mine, step);
    if (run.updates) hash = weft_fnv_bytes(hash, b->weights, run.count * sizeof(float));
    const struct weft_codec *codec = tensors[1]->codec; /* NULL: dense was chosen */
    worker->counted[step] = epoch == worker->session->epoch && codec ? weft_codec_steps(codec) + 1 : 0;
    hash = weft_fnv_bytes(hash, &tensors[1]->codec_choice.chosen, sizeof tensors[1]->codec_choice.chosen);
    run.chosen += codec && ranks > 1 && run.auto_codec;
    if (run.auto_codec && !codec != !tensors[1]->codec_choice.chosen)
        fail_seed("h%u: step %llu has another codec than was chosen", worker->host, (unsigned long long)step);
    if (run.auto_codec && ranks == 1 && codec)
        fail_seed("h%u: step %llu is coded, and no rank receives it", worker->host, (unsigned long long)step);
    worker->bits[step] = weft_fnv_bytes(hash, b->coded, run.count * sizeof(float)) | 1;
    worker->last = step;
    double weights = 0;
    bool within = false;
    for (uint32_t r = 0; r < ranks; r++) {
        weights += (double)weight_of(mine.born[r], step);
        within |= mine.born[r] == worker->host;
        for (uint32_t q = 0; q < r; q++)
            if (mine.born[q] == mine.born[r])
                fail_seed("h%u: step %llu has a member twice", worker->host, (unsigned long long)step);
    }
    if (!within) fail_seed("h%u: step %llu was good without it", worker->host, (unsigned long long)step);
    for (uint32_t i = 0; i < 8; i++) {
        int64_t sum = 0;
        for (uint32_t r = 0; r < ranks; r++) sum += (int64_t)(mine.born[r] * step + i);
        if (sum != b->whole_out[i])
            fail_seed("h%u: step %llu, element %u of the exact sum is not that of its members", worker->host,
                      (unsigned long long)step, i);
    }
    for (uint32_t i = 0; i < run.count; i++) {
        float sum = tree_sum(&mine, 0, ranks, step, 0, i);
        double mean = 0, scale = 0;
        if (memcmp(&sum, &b->in_place[i], sizeof sum) != 0) {
            fail_seed("h%u: step %llu, element %u of the reproducible sum is %g, not %g", worker->host,
                      (unsigned long long)step, i, (double)b->in_place[i], (double)sum);
            return;
        }
        for (uint32_t r = 0; r < ranks && !run.shards; r++) {
            double part = (double)weight_of(mine.born[r], step) * (double)input_of(mine.born[r], step, 1, i);
            mean += part / weights;
            scale += fabs(part) / weights;
        }
        if (!run.shards && fabs(mean - (double)b->mean[i]) > scale * 1e-5 + 1e-20) {
            fail_seed("h%u: step %llu, element %u of the mean is %g, not %g", worker->host,
                      (unsigned long long)step, i, (double)b->mean[i], mean);
            return;
        }
    }
}

/* ---- the program of a worker ---- */

static void compute(struct worker *worker)
{
    if (worker->slow > 0 && roll(3)) sim_process_sleep(1 + roll(WEFT_MS(1) / 1000 * worker->slow));
}

/* Status of a call in a running job: WEFT_OK, or a loss that the next step_end or step_begin explains. */
static bool passing(struct worker *worker, enum weft_status status)
{
    if (status >= 0 || status == WEFT_ERR_PEER_LOST) return true;
    worker->status = status;
    return false;
}

static enum weft_status changed(struct worker *worker, enum weft_status status)
{
    if (run.shards && run.updates && !worker->committed) worker->take = true;
    if (status == WEFT_ERR_GREW) worker->take = worker->due = true, run.grew++;
    if (status == WEFT_ERR_SHRUNK) run.shrunk++;
    worker->was_notified = true;
    worker->knew = false;
    return WEFT_IN_PROGRESS;
}

static bool is_change(enum weft_status status)
{
    return status == WEFT_ERR_SHRUNK || status == WEFT_ERR_GREW;
}

/* Allowed members of a step that the worker begins: those of its last good one, unless a call has reported
 * a change. */
static void check_told(struct worker *worker, uint64_t step, uint32_t ranks, const struct buffers *b)
{
    bool same = worker->members == ranks && memcmp(worker->born, b->born, ranks * sizeof *b->born) == 0;
    if (worker->committed && !worker->was_notified && !same)
        fail_seed("h%u: step %llu has other members than step %llu, and no call reported it", worker->host,
                  (unsigned long long)step, (unsigned long long)worker->committed);
    worker->was_notified = false;
    worker->members = ranks;
    memcpy(worker->born, b->born, sizeof worker->born);
}

/* The codec's residual is for the number of members, its random draws are for its rank, and its step count
 * (in bits) equals the others'. */
static void check_codec(const struct worker *worker, const struct weft_codec *codec)
{
    if (!codec && run.auto_codec) return;
    if (codec->ranks != weft_ranks(worker->session) || codec->worker != weft_rank(worker->session))
        fail_seed("h%u: its codec is of rank %u of %u, and it is rank %u of %u", worker->host, codec->worker,
                  codec->ranks, weft_rank(worker->session), weft_ranks(worker->session));
}

static bool breaks;    /* --breaks: the network also breaks control connections */
static bool separate;  /* --separate: no process can read whether one on another host is dead */
/* By then all ranks know of a visible death: at once where a data connection has ended, too. */
/* Ranks that rest learn it in their next call. */
static uint64_t told_ns(void)
{
    return TOLD_NS + (separate ? WEFT_SECONDS(5) : 0) + (with_moves ? WEFT_SECONDS(1) : 0);
}
static bool with_late; /* --late: half of the steps have deliver_late */

/* One try. WEFT_OK: the step is good. WEFT_IN_PROGRESS: run it again. */
static enum weft_status run_step(struct worker *worker, struct weft_tensor **tensors, struct buffers *b)
{
    struct weft_session *session = worker->session;
    struct weft_request *requests = memset(worker->requests, 0, sizeof worker->requests);
    uint64_t step = weft_step_next(session);
    const bool late = with_late && mix(run.seed * 17 + step) % 2;
    enum weft_status status = weft_step_begin_with(
        session,
        WEFT_STEP(.step = step, .lr = 1, .weight = weight_of(worker->host, step), .deliver_late = late));
    if (is_change(status)) return changed(worker, status);
    if (status < 0) return status;
    uint32_t ranks = weft_ranks(session), epoch = session->epoch;
    if (run.shards) note_try(worker, step);
    const bool knows = atomic_load(&session->epoch_change.grow_epoch) > session->epoch;
    if (knows && worker->knew)
        fail_seed("h%u: step %llu begins without a rank that the step before waited for", worker->host,
                  (unsigned long long)step);
    check_codec(worker, tensors[1]->codec);
    for (uint32_t i = 0; i < run.count; i++) {
        float in = input_of(worker->host, step, 0, i);
        if (worker->filled == step && memcmp(&b->in_place[i], &in, sizeof in) != 0)
            fail_seed("h%u: step %llu is run again, and its input was not kept", worker->host,
                      (unsigned long long)step);
        b->in_place[i] = in;
        b->grad[i] = input_of(worker->host, step, 1, i);
        b->grads[i] = input_of(worker->host, step, 2, i);
    }
    worker->filled = step;
    for (uint32_t i = 0; i < 8; i++) b->whole[i] = (int64_t)(worker->host * step + i);
    memset(b->born, 0, sizeof b->born);
    compute(worker);
    enum weft_status started[6];
    int calls = 5;
    started[0] = weft_all_gather(session, &worker->host, b->born, 1, WEFT_U32, &requests[0]);
    started[1] = weft_call_start(session,
                                 WEFT_CALL(.kind = WEFT_CALL_ALL_REDUCE, .in = b->in_place,
                                           .out = b->in_place, .count = run.count, .dtype = WEFT_F32,
                                           .reproducible = true, .preserve_input = true),
                                 &requests[1]);
    if (roll(2) && started[1] >= 0 && !passing(worker, weft_wait(&requests[1], 0))) return worker->status;
    compute(worker);
    started[2] = weft_push_pull(tensors[0], b->grad, b->mean, &requests[2]);
    started[3] = weft_push_pull(tensors[1], b->grad, b->coded, &requests[3]);
    compute(worker);
    started[4] = weft_all_reduce(session, b->whole, b->whole_out, 8, WEFT_I64, WEFT_SUM, &requests[4]);
    if (run.updates) started[calls++] = weft_push_pull(tensors[2], b->grads, b->weights, &requests[5]);
    for (int i = 0; i < calls; i++)
        if (!passing(worker, started[i]) || (roll(2) && !passing(worker, weft_wait(&requests[i], 0))))
            return worker->status;
    compute(worker);
    status = weft_step_end(session);
    if (late && status == WEFT_OK) {
        compute(worker);
        (void)weft_tensor_wait(tensors[roll(2)], 0); /* the fate of the step follows */
        status = weft_step_wait(session);
    }
    if (is_change(status)) {
        if (run.updates) check_model(worker, tensors[2], b, "a step discarded");
        check_coded(worker, tensors[1], b, "a step discarded");
        run.again++;
        return changed(worker, status);
    }
    if (status < 0) return status;
    if (worker->committed && step != worker->committed + 1)
        fail_seed("h%u: step %llu was good after step %llu", worker->host, (unsigned long long)step,
                  (unsigned long long)worker->committed);
    if (step >= STEPS_MAX) return WEFT_ERR_LIMIT;
    check_told(worker, step, ranks, b);
    worker->knew = knows;
    worker->committed = worker->state = step;
    worker->filled = 0;
    worker->take = worker->due = false;
    keep_coded(tensors[1], b);
    run.steps_done++;
    check_results(worker, step, epoch, ranks, tensors, b);
    return WEFT_OK;
}

/* All ranks take the state of the rank with the newest one; here, the round of data. (The rank that
 * weft_join names may be lost.) */
static enum weft_status take_updated(struct worker *worker, struct weft_tensor *tensor, struct buffers *b,
                                     uint32_t root)
{
    bool due = worker->due && tensor->elastic.broadcast.epoch != worker->session->epoch;
    if (due && client_state_broadcast_check(tensor, "push_pull") != WEFT_ERR_STATE)
        fail_seed("h%u: a step may begin before the ranks have shared what has an optimiser", worker->host);
    enum weft_status status = weft_tensor_share(tensor, b->weights, root);
    if (status < 0) return status;
    if (client_state_broadcast_check(tensor, "push_pull") != WEFT_OK)
        fail_seed("h%u: ranks that have shared what has an optimiser are to do it again", worker->host);
    for (uint32_t s = 0;
         s <= weft_optimizer_states(&tensor->options.optimizer) && weft_rank(worker->session) != root; s++)
        memcpy(b->model[s], array_of(tensor, b, s), run.count * sizeof(float));
    check_model(worker, tensor, b, "shared");
    return WEFT_OK;
}

/* The shards get the first weights; after a loss all ranks repeat it until a step is good. */
static enum weft_status take_first(struct worker *worker, struct weft_tensor *tensor, struct buffers *b)
{
    const enum weft_status status = weft_tensor_init(tensor, b->weights);
    if (status == WEFT_OK) memcpy(b->model[0], b->weights, run.count * sizeof(float));
    else if (status == WEFT_ERR_PEER_LOST)
        check_model(worker, tensor, b, "first weights that did not arrive");
    return status;
}

/* The round of data of the rank with the newest state, *root_out. */
static enum weft_status take_round(struct worker *worker, uint32_t *root_out)
{
    struct weft_request *requests = memset(worker->requests, 0, sizeof worker->requests);
    uint64_t *newest = memset(worker->newest, 0, sizeof worker->newest);
    uint32_t ranks = weft_ranks(worker->session), root = 0;
    enum weft_status status =
        weft_all_gather(worker->session, &worker->state, newest, 1, WEFT_U64, &requests[0]);
    if (status >= 0) status = weft_wait(&requests[0], 0);
    if (status < 0) return status;
    for (uint32_t r = 1; r < ranks; r++)
        if (newest[r] > newest[root]) root = r;
    status = weft_broadcast(worker->session, &worker->round, 1, WEFT_U64, root, &requests[1]);
    *root_out = root;
    return status < 0 ? status : weft_wait(&requests[1], 0);
}

/* After a rest or with new ranks, until a step is good, all ranks take the shards' state. */
static enum weft_status take_kept(struct worker *worker, struct weft_tensor *tensor, struct buffers *b)
{
    if (!worker->due) return take_first(worker, tensor, b);
    const bool due = tensor->elastic.broadcast.epoch != worker->session->epoch;
    if (due && client_state_broadcast_check(tensor, "push_pull") != WEFT_ERR_STATE)
        fail_seed("h%u: a step may begin before this rank has taken what shards have", worker->host);
    const enum weft_status status =
        weft_tensor_share(tensor, b->weights, (uint32_t)roll(weft_ranks(worker->session)));
    if (status == WEFT_OK) follow_kept(worker, tensor, b);
    else if (status == WEFT_ERR_PEER_LOST) check_model(worker, tensor, b, "weights that did not arrive");
    return status;
}

/* root: it has the newest state. */
static enum weft_status take_coded(struct worker *worker, struct weft_tensor *tensor, struct buffers *b,
                                   uint32_t root)
{
    if (!coded_updates(tensor)) return WEFT_OK;
    const enum weft_status status = worker->due || run.auto_codec ? weft_tensor_share(tensor, b->coded, root)
                                                                  : weft_tensor_init(tensor, b->coded);
    if (status == WEFT_ERR_PEER_LOST) check_coded(worker, tensor, b, "a state that did not arrive");
    if (status == WEFT_OK) keep_coded(tensor, b);
    return status;
}

static enum weft_status take_state(struct worker *worker, struct weft_tensor **tensors, struct buffers *b)
{
    uint32_t root;
    enum weft_status status = take_round(worker, &root);
    const uint64_t newest = worker->newest[root];
    if (status == WEFT_OK && run.updates) status = take_updated(worker, tensors[2], b, root);
    if (status == WEFT_OK) worker->state = newest;
    return status;
}

static enum weft_status rest(struct worker *worker)
{
    enum weft_status status;
    uint32_t last = 0;
    compute(worker);
    uint64_t until_ns = weft_sim_now_ns(run.sim) + WEFT_SECONDS(100);
    worker->rests = true;
    do status = weft_join(worker->session, 1 + roll(100), &last);
    while (status == WEFT_ERR_DEADLINE && weft_sim_now_ns(run.sim) < until_ns);
    if (status < 0) return status;
    worker->rests = false;
    run.joined++;
    if (last >= weft_ranks(worker->session))
        fail_seed("h%u: rank %u was the last to join, of %u", worker->host, last,
                  weft_ranks(worker->session));
    worker->round++;
    worker->ran = 0;
    worker->committed = 0;
    worker->knew = false;
    worker->take = worker->due = worker->was_notified = true;
    return WEFT_OK;
}

/* From the shards; what ranks keep, from the rank with the newest state. */
static enum weft_status take_from_shards(struct worker *worker, struct weft_tensor **tensors,
                                         struct buffers *b)
{
    uint32_t root = 0;
    enum weft_status status = WEFT_OK;
    if (worker->due && (run.newcomers || coded_too)) status = take_round(worker, &root);
    if (status == WEFT_OK) status = take_kept(worker, tensors[2], b);
    if (status == WEFT_OK) status = take_coded(worker, tensors[1], b, root);
    return status;
}

/* All ranks that continue return the same. */
static enum weft_status free_brief(struct worker *worker)
{
    const uint32_t epoch = worker->session->epoch;
    const enum weft_status status = weft_tensor_free(worker->brief);
    if (status == WEFT_OK) {
        if (run.freed_in > 0 && run.freed_in != epoch)
            fail_seed("h%u frees the tensor in epoch %u, others in epoch %u", worker->host, epoch,
                      run.freed_in);
        worker->brief = NULL;
        run.freed_in = epoch;
        run.frees++;
        return status;
    }
    if (status == WEFT_ERR_STATE && run.joins) return WEFT_OK; /* a rank rests */
    if (status != WEFT_ERR_PEER_LOST || client_failed(worker->session) < 0) return status;
    if (run.freed_in == epoch)
        fail_seed("h%u keeps the tensor that others free in epoch %u", worker->host, epoch);
    run.frees_again++;
    return WEFT_OK;
}

static bool is_over(const struct worker *worker)
{
    return run.joins ? worker->round >= run.rounds : weft_step_next(worker->session) > run.goal;
}

static enum weft_status train(struct worker *worker, struct weft_tensor **tensors)
{
    struct buffers *b = weft_alloc_zero(weft_sim_env(run.sim, worker->host), sizeof *b);
    enum weft_status status;
    if (!b) return WEFT_ERR_NO_MEMORY;
    for (uint32_t i = 0; i < run.count; i++) {
        b->weights[i] = b->model[0][i] = input_of(worker->host, 0, 3, i);
        b->coded[i] = b->coded_before[0][i] = coded_updates(tensors[1]) ? input_of(worker->host, 0, 4, i) : 0;
    }
    while (!is_over(worker)) {
        if (worker->take && run.shards && run.updates &&
            !passing(worker, take_from_shards(worker, tensors, b)))
            return worker->status;
        if (worker->take && !run.shards && !passing(worker, take_state(worker, tensors, b)))
            return worker->status;
        if (is_over(worker)) break;
        const bool may_rest = !run.shards || !run.updates ||
                              (tensors[2]->progress.initialised &&
                               (tensors[1]->progress.initialised || !coded_updates(tensors[1])));
        if (run.joins && may_rest && worker->ran >= worker->data[worker->round]) {
            status = rest(worker);
            if (status < 0) return status;
            continue;
        }
        if (worker->brief && weft_step_next(worker->session) > 3) {
            status = free_brief(worker);
            if (status < 0) return status;
        }
        if (with_moves) sim_process_sleep(1 + roll(WEFT_MS(600)));
        status = run_step(worker, tensors, b);
        if (status < 0) return status;
        worker->ran += status == WEFT_OK;
    }
    return WEFT_OK;
}

static const char *coded_codec(void)
{
    static const char *const codecs[] = {"topk:ratio=0.1,min_count=0",
                                         "randomk:ratio=0.2,min_count=0",
                                         "topk:ratio=0.1,min_count=0,global=1",
                                         "int8:min_count=0",
                                         "bf16",
                                         "int4:min_count=0"};
    if (run.auto_codec) return AUTO_CODEC;
    return codecs[run.seed % (coded_too ? 6 : 2)];
}

static enum weft_status declare(struct worker *worker, struct weft_tensor **tensors)
{
    struct weft_tensor_options options;
    static const char *const names[] = {"mean", "coded", "updated"}, *const optimizers[] = {
                                                                         "sgd:momentum=0.9", "adam", "lamb"};
    /* Optimizers whose weights alone identify the gradient after each step: the arrays are at the shards. */
    static const char *const telling[] = {"sgd:momentum=0.9", "adam:eps=0.5", "sgd:momentum=0.9,nesterov=1"};
    if (with_frees && run.freed_in == 0) {
        weft_tensor_options_init(&options);
        options.name = "brief";
        options.dim_count = 1;
        options.dims[0] = run.count;
        options.mode = run.shards ? WEFT_MODE_SERVER : WEFT_MODE_ALL_REDUCE;
        const enum weft_status status = weft_declare(worker->session, &options, &worker->brief);
        if (status < 0) return status;
    }
    for (uint32_t i = 0; i < 2u + run.updates; i++) {
        weft_tensor_options_init(&options);
        options.name = names[i];
        options.dim_count = 1;
        options.dims[0] = run.count;
        options.mode = run.shards && (i != 1 || coded_too) ? WEFT_MODE_SERVER : WEFT_MODE_ALL_REDUCE;
        options.chunk_bytes = CHUNK * sizeof(float);
        options.optimizer = i == 2 ? (run.shards ? telling : optimizers)[run.seed % 3] : "none";
        if (i == 1 && coded_too && run.seed / 6 % 2) options.optimizer = "sgd:momentum=0.9";
        options.codec = i == 1 ? coded_codec() : "";
        enum weft_status status = weft_declare(worker->session, &options, &tensors[i]);
        if (status < 0) return status;
    }
    return WEFT_OK;
}

static void worker_main(void *context)
{
    struct worker *worker = context;
    struct weft_tensor *tensors[3] = {NULL};
    struct weft_options options;
    char name[16];
    weft_options_init(&options);
    options.coordinator = "coordinator:4000";
    options.job = "simulated";
    options.deadline_ms = DEADLINE_NS / WEFT_MS(1);
    snprintf(name, sizeof name, "h%u", worker->host);
    setenv("WEFT_CLIENT_HOST", name, 1); /* read before the first wait */
    enum weft_status status = client_init(weft_sim_env(run.sim, worker->host), &options, &worker->session);
    if (status < 0) {
        snprintf(worker->text, sizeof worker->text, "%s", weft_error_text(NULL));
        worker->ending = REFUSED;
    } else {
        worker->due = weft_newcomer(worker->session);
        worker->take = worker->due || run.updates;
        status = declare(worker, tensors);
        worker->trains = status == WEFT_OK;
        worker->trains_ns = weft_sim_now_ns(run.sim);
        if (status == WEFT_OK) status = train(worker, tensors);
        struct weft_request probe = {{0}};
        /* the text is that of the last failed call: repeat it, unless the session goes on */
        const bool goes_on = strstr(weft_error_text(worker->session), "nothing was declared") != NULL;
        if (status < 0 && !goes_on) weft_barrier(worker->session, &probe);
        snprintf(worker->text, sizeof worker->text, "%s", weft_error_text(worker->session));
        struct weft_session *session = worker->session;
        worker->session = NULL;
        uint64_t now_ns = weft_sim_now_ns(run.sim);
        worker->late = status == WEFT_ERR_PEER_LOST && !run.silence && now_ns - run.gone_ns > told_ns();
        if (status == WEFT_OK) run.gone_ns = now_ns;
        weft_finalize(session);
        worker->ending = status < 0 ? FAILED : FINISHED;
    }
    worker->status = status;
    check_done();
}

static uint32_t first_shard(void)
{
    return FIRST_WORKER + run.workers + run.newcomers;
}

static void shard_main(void *context)
{
    const uint32_t index = (uint32_t)(uintptr_t)context;
    struct weftd_options options;
    weftd_options_init(&options);
    options.job = "simulated";
    options.coordinator = "coordinator:4000";
    options.index = (int)index;
    options.engines = 1 + (uint32_t)(run.seed % 2);
    options.config = run.config;
    (void)weftd_run(weft_sim_env(run.sim, first_shard() + index), &options);
}

/* ---- faults ---- */

static uint64_t net_random(uint64_t below)
{
    return roll(below);
}
static void wake(uint32_t host)
{
    weft_sim_wake(run.sim, host);
}

/* Both ranks live and the link between them fails; after both are connected. */
static void break_link(struct worker *a, struct worker *b, struct weft_timer *timer)
{
    if (b->ending != RUNS || b->killed || run.cut[0]) return;
    if (!a->trains || !b->trains) {
        weft_timer_start(run.hand, timer, weft_sim_now_ns(run.sim) + 1 + roll(WEFT_MS(2)));
        return;
    }
    if (!a->session || !b->session) return;
    run.cut[0] = a, run.cut[1] = b;
    run.gone_ns = weft_sim_now_ns(run.sim);
    weft_transport_fail_peer(a->session->engine->transport, b->session->membership.endpoint,
                             WEFT_ERR_PEER_LOST, "the link is broken");
    weft_transport_fail_peer(b->session->engine->transport, a->session->membership.endpoint,
                             WEFT_ERR_PEER_LOST, "the link is broken");
    weft_sim_wake(run.sim, a->host);
    weft_sim_wake(run.sim, b->host);
}

static void strike(struct weft_timer *timer)
{
    struct fault *fault = weft_container_of(timer, struct fault, timer);
    const bool a_shard = fault->host >= FIRST_WORKER + run.workers + run.newcomers;
    struct worker *worker =
        fault->host >= FIRST_WORKER && !a_shard ? &run.all[fault->host - FIRST_WORKER] : NULL;
    if (worker && (worker->ending != RUNS || worker->killed)) return;
    run.silence |= fault->silent || fault->stall_ns > 0;
    if (fault->abort) {
        if (!worker->session || run.aborter ||
            weft_abort(worker->session, "the loss is not finite") != WEFT_OK)
            return;
        run.aborter = worker;
        weft_sim_wake(run.sim, worker->host);
    } else if (fault->cut) {
        break_link(worker, &run.all[fault->cut - FIRST_WORKER], timer);
    } else if (fault->stall_ns) {
        sim_net_stall(fault->host, weft_sim_now_ns(run.sim) + fault->stall_ns);
    } else {
        if (worker) worker->killed = true;
        else if (!a_shard) run.coordinator_killed = true;
        for (uint32_t i = 0; i < run.workers; i++) run.killed_early |= !run.all[i].trains;
        run.kills++;
        run.gone_ns = weft_sim_now_ns(run.sim);
        weft_sim_kill(run.sim, fault->host);
        sim_net_died(fault->host, fault->silent);
        check_done();
    }
}

/* Copies begin at whole seconds, which are the coordinator's ticks: half of the faults are shortly before. */
static uint64_t later(uint64_t time_ns)
{
    const uint64_t at_ns = 16 * time_ns;
    if (mix(time_ns) % 2) return at_ns;
    return (at_ns / WEFT_SECONDS(1) + 1) * WEFT_SECONDS(1) - mix(time_ns) % WEFT_MS(20);
}

static void add_fault(struct weft_env *env, struct fault fault, uint64_t time_ns)
{
    struct fault *kept = weft_alloc_zero(env, sizeof *kept);
    if (!kept) return;
    *kept = fault;
    weft_timer_init(&kept->timer, strike);
    weft_timer_start(run.hand, &kept->timer, with_moves ? later(time_ns) : time_ns);
}

static uint64_t bit(uint32_t host)
{
    return 1ull << host;
}

static uint64_t some_workers(void)
{
    uint64_t mask = 0;
    while (!mask)
        for (uint32_t i = 0; i < run.workers + run.newcomers; i++)
            if (roll(3) == 0) mask |= bit(FIRST_WORKER + i);
    return mask;
}

/* Consequences of the fault for what other ranks may observe. 0.7 heartbeats of silence and the pause
 * between two of them may add up. */
static void note_apart(const struct sim_fault *fault)
{
    uint64_t both = fault->left | fault->right, away = fault->stopped;
    run.silence = true;
    run.suspects |= fault->stopped | both;
    /* on the right, if anywhere; hosts that it still reaches are with it */
    if (fault->right & bit(COORDINATOR)) away |= fault->left;
    if (fault->lasts_ns > DEADLINE_NS / 2 && fault->left & ~bit(COORDINATOR) &&
        fault->right & ~bit(COORDINATOR))
        run.cut_long = true;
    if (fault->lasts_ns < run.heartbeat_ns / 10 * 7) return;
    if (run.apart_ns == 0 || fault->at_ns < run.apart_ns) run.apart_ns = fault->at_ns;
    if (fault->stopped & bit(COORDINATOR)) run.coordinator_apart = true;
    for (uint32_t i = 0; i < run.workers + run.newcomers; i++)
        run.all[i].apart |= away >> run.all[i].host & 1;
}

static void choose_apart(uint64_t span_ns)
{
    const uint64_t all_members =
        (bit(FIRST_WORKER + run.workers + run.newcomers + run.shards) - 1) & ~bit(HAND);
    struct sim_fault fault = {.at_ns = 1 + roll(2 * span_ns)};
    fault.lasts_ns = WEFT_MS(1) << roll(16);
    fault.lasts_ns += roll(WEFT_MS(1));
    switch (roll(6)) {
    case 0: fault.stopped = some_workers(); break;
    case 1:
        fault.stopped = roll(4) ? bit(FIRST_WORKER + (uint32_t)roll(run.workers)) : bit(COORDINATOR);
        break;
    case 2: fault.left = some_workers(), fault.right = all_members & ~fault.left & ~bit(COORDINATOR); break;
    case 3: fault.left = some_workers(), fault.right = all_members & ~fault.left; break;
    case 4: fault.left = some_workers(), fault.right = bit(COORDINATOR); break;
    case 5:
        fault.left = some_workers(), fault.right = some_workers() & ~fault.left;
        fault.lasts_ns = 1 + roll(WEFT_MS(20));
        fault.times = 1 + (uint32_t)roll(50);
        break;
    }
    if (!fault.stopped && roll(5) == 0 && fault.times == 0) fault.lasts_ns = WEFT_NEVER;
    note_apart(&fault);
    sim_fault_add(run.sim, run.hand, &fault);
}

static uint32_t some_worker(void)
{
    return FIRST_WORKER + (uint32_t)roll(run.workers + run.newcomers);
}

/* Each random draw is a statement of its own: equal jobs with any compiler. */
static void choose_faults(struct weft_env *env)
{
    uint32_t kills = roll(5) ? (uint32_t)roll(run.workers + 1) : 0;
    uint64_t span_ns = WEFT_MS(1) << roll(9), at_ns;
    for (uint32_t i = 0; i < kills; i++) {
        struct fault fault = {.host = some_worker()};
        fault.silent = roll(6) == 0;
        at_ns = 1 + roll(span_ns);
        add_fault(env, fault, at_ns);
    }
    for (uint64_t i = roll(3); i > 0; i--) {
        struct fault fault = {.host = some_worker()};
        fault.stall_ns = 1 + roll(WEFT_MS(200));
        at_ns = 1 + roll(span_ns);
        add_fault(env, fault, at_ns);
    }
    uint32_t aborter = some_worker(), one = some_worker(), other = some_worker();
    at_ns = 1 + roll(span_ns);
    if (roll(8) == 0) add_fault(env, (struct fault){.host = aborter, .abort = true}, at_ns);
    bool silent = roll(3) == 0;
    at_ns = 1 + roll(span_ns);
    if (roll(30) == 0) add_fault(env, (struct fault){.host = COORDINATOR, .silent = silent}, at_ns);
    at_ns = 1 + roll(WEFT_MS(1));
    if (roll(4) == 0 && one != other) add_fault(env, (struct fault){.host = one, .cut = other}, at_ns);
    if (roll(3) == 0)
        for (uint64_t i = 1 + roll(3); i > 0; i--) choose_apart(span_ns);
}

/* Some shards learn of a loss, or of new members, long after the workers. */
static void choose_late_shards(struct weft_env *env)
{
    for (uint64_t i = roll(6); i > 0; i--) {
        struct fault fault = {.host = first_shard() + (uint32_t)roll(run.shards)};
        uint64_t at_ns = 1 + roll(WEFT_MS(1) << roll(9));
        fault.stall_ns = 1 + roll(WEFT_MS(1) << roll(8));
        add_fault(env, fault, at_ns);
    }
    for (uint64_t i = roll(3); i > 0; i--) { /* and more deaths in the middle of steps */
        struct fault fault = {.host = some_worker()},
                     late = {.host = FIRST_WORKER + (uint32_t)roll(run.workers + run.newcomers + run.shards)};
        uint64_t at_ns = WEFT_MS(4) + roll(WEFT_MS(1) << roll(5));
        late.stall_ns = 1 + roll(WEFT_MS(1) << roll(6));
        add_fault(env, fault, at_ns);
        /* one worker, or a shard, learns of this loss late: it still pushes, or collects */
        if (roll(3)) add_fault(env, late, at_ns - 1);
    }
}

/* A shard is stopped, or cut off from the workers, the coordinator, or all. Its draws are separate, so
 * other draws of a seed do not change. */
static void choose_shard_fault(void)
{
    if (mix(run.seed + 11) % 4 > 0) return;
    const uint64_t draws[] = {mix(run.seed + 1000), mix(run.seed + 2000), mix(run.seed + 3000),
                              mix(run.seed + 4000)};
    const uint64_t shard = bit(first_shard() + (uint32_t)(draws[0] % run.shards)),
                   workers = bit(first_shard()) - bit(FIRST_WORKER);
    struct sim_fault fault = {.at_ns = 1 + draws[1] % WEFT_MS(60), .lasts_ns = WEFT_MS(1) << draws[2] % 16};
    switch (draws[3] % 4) {
    case 0: fault.stopped = shard; break;
    case 1: fault.left = shard, fault.right = workers | bit(COORDINATOR); break;
    case 2: fault.left = shard, fault.right = bit(COORDINATOR); break;
    case 3: fault.left = shard, fault.right = workers; break;
    }
    run.shard_apart = fault.lasts_ns >= run.heartbeat_ns / 10 * 7;
    run.silence = true;
    run.suspects |= shard;
    sim_fault_add(run.sim, run.hand, &fault);
}

/* One shard dies: its copies lead. Separate draws, as above. */
static void choose_shard_death(struct weft_env *env)
{
    const uint64_t draws[] = {mix(run.seed + 1000), mix(run.seed + 2000), mix(run.seed + 3000)};
    const struct fault fault = {.host = FIRST_WORKER + run.workers + (uint32_t)(draws[0] % run.shards),
                                .silent = draws[2] % 3 == 0};
    if (mix(run.seed + 11) % 4 == 0) return;
    run.suspects |= bit(fault.host);
    add_fault(env, fault, WEFT_MS(3) + draws[1] % (WEFT_MS(1) << draws[2] % 8));
}

static void job_ended(void *context, enum weft_status status, const char *text)
{
    run.job_ended = true;
}

static void choose_job(uint64_t seed)
{
    run.seed = seed;
    run.workers = 1 + (uint32_t)roll(6);
    run.workers_min = 1 + (uint32_t)roll(run.workers);
    run.newcomers = roll(2) ? (uint32_t)roll(4) : 0;
    run.workers_max = run.newcomers ? run.workers + (uint32_t)roll(3) : 0;
    run.heartbeat_ns = WEFT_SECONDS(2 + roll(4));
    run.joins = roll(3) == 0;
    run.rounds = 1 + (uint32_t)roll(ROUNDS_MAX);
    run.goal = 1 + (uint32_t)roll(12);
    run.count = 1 + (uint32_t)roll(roll(2) ? 20 : COUNT_MAX);
    for (uint32_t i = 0; i < run.workers + run.newcomers; i++) {
        struct worker *worker = &run.all[i];
        worker->host = FIRST_WORKER + i;
        worker->newcomer = i >= run.workers;
        worker->slow = (uint32_t)roll(1 << roll(13));
        worker->after_ns = worker->newcomer ? WEFT_MS(5) + roll(WEFT_MS(1) << roll(8)) : roll(WEFT_MS(1));
        for (uint32_t r = 0; r < ROUNDS_MAX; r++) worker->data[r] = (uint32_t)roll(5);
    }
}

static void choose_shards(struct weft_config *config)
{
    run.config = config;
    run.shards = 1 + (uint32_t)roll(SHARDS_MAX);
    if (with_copies && run.shards == 1) run.shards = 2;
    if (with_moves) run.shards = SHARDS_MAX;
    if (!newcomers_too) run.newcomers = run.workers_max = 0;
}

static bool start_coordinator(struct weft_env *env, struct weft_coordinator_server **out)
{
    struct weft_net *net;
    struct weft_coordinator_options options;
    struct weft_error error = {0};
    uint16_t port;
    weft_coordinator_options_init(&options);
    if (breaks) options.resume_ns = WEFT_SECONDS(100); /* the heartbeat decides, as without breaks */
    options.job = "simulated";
    options.workers = run.workers;
    options.workers_min = run.workers_min;
    options.workers_max = run.workers_max;
    options.shards = run.shards;
    options.copies = with_copies;
    options.copies_on_one_host = true;
    options.heartbeat_ns = run.heartbeat_ns;
    options.join_ns = WEFT_SECONDS(30);
    options.ended = job_ended;
    enum weft_status status = weft_net_create(env, &net);
    if (status == WEFT_OK)
        status = weft_coordinator_server_start(env, net, "127.0.0.1", 0, &options, &port, out, &error);
    if (status < 0 || port != 4000) fail_seed("no coordinator: %s", error.text);
    return !run.why[0];
}

/* ---- results ---- */

/* "h7, pid": the text names a dead, stopped or cut-off rank, or the coordinator. More than three late
 * ranks are listed by their numbers at that time. */
static bool names_a_culprit(const char *text)
{
    char name[24];
    /* a rank that waits at the cut pushes nothing; a shard has numbers only */
    if (run.cut_long && run.shards && strstr(text, "no push from rank")) return true;
    if (run.cut_long && strstr(text, "do not answer") && __builtin_popcountll(run.suspects) > 3) return true;
    for (uint32_t i = 0; i < run.workers + run.newcomers; i++) {
        snprintf(name, sizeof name, "(h%u, ", run.all[i].host);
        /* an abort that no coordinator could pass on */
        bool gone = run.all[i].killed || (run.coordinator_killed && run.aborter == &run.all[i]);
        gone |= run.cut[0] == &run.all[i] || run.cut[1] == &run.all[i];
        if ((gone || run.suspects >> run.all[i].host & 1) && strstr(text, name)) return true;
    }
    for (uint32_t i = 0; i < run.shards; i++) {
        snprintf(name, sizeof name, "shard %u ", i);
        if (run.suspects >> (first_shard() + i) & 1 && strstr(text, name)) return true;
    }
    return (run.coordinator_killed || run.suspects & bit(COORDINATOR)) && strstr(text, "coordinator");
}

/* Returns whether the text names an end of the broken link. */
static bool names_the_link(const char *text)
{
    char names[2][16];
    for (int i = 0; i < 2; i++) snprintf(names[i], sizeof names[i], "(h%u, ", run.cut[i]->host);
    return strstr(text, "the link between two of them is broken") &&
           (strstr(text, names[0]) || strstr(text, names[1]));
}

/* If the ranks that knew the progress of the job died, a newcomer may run rounds after the others are
 * done: it misses a rank that has finished. */
static bool misses_a_leaver(const char *text)
{
    char name[16];
    for (uint32_t i = 0; i < run.workers + run.newcomers; i++) {
        snprintf(name, sizeof name, "(h%u, ", run.all[i].host);
        if (run.all[i].ending == FINISHED && strstr(text, name))
            return strstr(text, "left the group before") != NULL;
    }
    return false;
}

/* Returns whether the ranks that were not killed, declared lost or finished were enough to continue. */
static bool could_go_on(void)
{
    uint32_t left = 0;
    for (uint32_t i = 0; i < run.workers + run.newcomers; i++) {
        const struct worker *worker = &run.all[i];
        left += worker->trains && !worker->killed && !worker->apart && worker->ending != FINISHED;
    }
    return !run.killed_early && !run.coordinator_killed && !run.coordinator_apart && !run.shard_apart &&
           !run.cut_long && left >= run.workers_min;
}

/* The job has ended because all active ranks were lost: checks that this was so. */
static bool only_rest(const struct worker *worker)
{
    if (!run.shards ||
        !strstr(worker->text, "the ranks that are left rest, and the shards may be steps beyond them"))
        return false;
    for (uint32_t i = 0; i < run.workers + run.newcomers; i++) {
        const struct worker *other = &run.all[i];
        if (other->trains && !other->killed && !other->apart && !other->rests && other->ending != FINISHED)
            return false;
    }
    return true;
}

static const char *what_is_wrong(const struct worker *worker)
{
    if (worker->ending == RUNS) return "did not end in 300 s of virtual time";
    if (worker->ending == FINISHED) return NULL;
    /* Too late, or no free place: another newcomer may have been faster. */
    bool refused =
        worker->ending == REFUSED && (worker->status == WEFT_ERR_EXISTS || worker->status == WEFT_ERR_CLOSED);
    bool lost = run.kills > 0 || run.suspects;
    if (refused && (run.newcomers > 0 || lost || run.aborter)) return NULL;
    if (worker->status == WEFT_ERR_ABORTED && run.aborter) {
        return strstr(worker->text, "the loss is not finite") ? NULL
                                                              : "does not have the reason of the abort";
    }
    if (worker->status == WEFT_ERR_PEER_LOST && worker->newcomer && lost && misses_a_leaver(worker->text))
        return NULL;
    if (worker->status == WEFT_ERR_PEER_LOST && !worker->apart && could_go_on() && !run.cut[0] &&
        !only_rest(worker))
        return "ended by a loss, though enough were left to go on";
    if (worker->late) return "learned of a loss that ended it more than a second later";
    if (worker->status == WEFT_ERR_PEER_LOST && run.cut[0] && names_the_link(worker->text)) return NULL;
    /* given up, and running again */
    if (worker->status == WEFT_ERR_PEER_LOST && worker->apart &&
        strstr(worker->text, "and no word about it from the coordinator"))
        return NULL;
    if (worker->status == WEFT_ERR_PEER_LOST && lost)
        return names_a_culprit(worker->text) ? NULL : "names no rank that died or was cut off";
    /* weft_join formats it so */
    bool late = worker->status == WEFT_ERR_DEADLINE || (worker->status == WEFT_ERR_ABORTED && run.joins);
    /* which ends before */
    if (late && strstr(worker->text, "operations are still running"))
        return "gave a step up and did not name the rank it waited for";
    bool asked = run.coordinator_killed || run.coordinator_apart || worker->apart;
    /* a rank that died silently counts as late */
    if ((worker->status == WEFT_ERR_UNREACHABLE || late) && asked) return NULL;
    bool waited = worker->ending == REFUSED && (run.killed_early || (worker->newcomer && lost));
    /* for a rank that died, or was away, before its loss was known */
    if (worker->status == WEFT_ERR_DEADLINE && waited)
        return names_a_culprit(worker->text) || strstr(worker->text, "not joined") ||
                       /* the others wait for the shard that is cut off */
                       (run.shard_apart && (strstr(worker->text, "not ended a step") ||
                                          strstr(worker->text, "has not called it")))
                   ? NULL
                   : "does not name the rank it waited for";
    if (worker->status == WEFT_ERR_CLOSED && run.suspects && strstr(worker->text, "called weft_finalize"))
        return names_a_culprit(worker->text) ? NULL : "names no rank that gave up";
    /* it waits at the shard; only ranks that wait there can report which */
    if (late && run.shard_apart && strstr(worker->text, "has not called it")) return NULL;
    if (late && (run.cut_long || run.shard_apart))
        return names_a_culprit(worker->text) ? NULL : "names no rank at the cut";
    return "ended with a status that nothing here explains";
}

static bool is_gone(const struct worker *worker)
{
    return worker->killed || (worker->apart && (worker->ending != FINISHED || worker->unheard));
}

static void find_unheard(struct weft_coordinator_server *server)
{
    const char *status = NULL; /* in the arena */
    char lost[48];
    for (uint32_t i = 0; i < run.workers + run.newcomers; i++) {
        struct worker *worker = &run.all[i];
        if (!worker->apart || worker->ending != FINISHED) continue;
        if (!status) status = weft_coordinator_server_status_json(server);
        snprintf(lost, sizeof lost, "\"state\":\"lost\",\"host\":\"h%u\"", worker->host);
        worker->unheard = status && strstr(status, lost);
    }
}

/* Bytes of copies that were made while the job ran. */
static uint64_t moved_bytes(struct weft_coordinator_server *server)
{
    static const char key[] = "\"moved_bytes\":";
    const char *status = with_moves ? weft_coordinator_server_status_json(server) : NULL; /* in the arena */
    const char *at = status ? strstr(status, key) : NULL;
    return at ? strtoull(at + sizeof key - 1, NULL, 10) : 0;
}

/* A rank that was given up may have learned the end of one step that the others, which had not, ran again:
 * without a later step it may have left in order before it could learn that. What only lost ranks knew is
 * lost. */
static bool may_differ(const struct worker *worker, uint64_t step)
{
    if (!is_gone(worker)) return false;
    if (worker->apart && step == worker->last) return true;
    for (uint32_t i = 0; i < run.workers + run.newcomers; i++) /* a member of it may not have learned it */
        if (worker->bits[step] == run.all[i].bits[step] && !is_gone(&run.all[i])) return false;
    return true;
}

static void check_agreement(void)
{
    for (uint64_t step = 0; step < STEPS_MAX; step++) {
        const struct worker *first = NULL, *counts = NULL;
        for (uint32_t i = 0; i < run.workers + run.newcomers; i++) {
            const struct worker *worker = &run.all[i];
            if (!worker->bits[step] || may_differ(worker, step)) continue;
            if (!first) first = worker;
            if (!counts && worker->counted[step]) counts = worker;
            if (worker->bits[step] != first->bits[step])
                fail_seed("step %llu has other members or bits at h%u than at h%u", (unsigned long long)step,
                          worker->host, first->host);
            if (worker->counted[step] && worker->counted[step] != counts->counted[step])
                fail_seed("in step %llu the codec of h%u counts otherwise than that of h%u",
                          (unsigned long long)step, worker->host, counts->host);
        }
    }
}

static void check_ends(void)
{
    for (uint32_t i = 0; i < run.workers && run.apart_ns > 0; i++)
        run.killed_early |= !run.all[i].trains || run.all[i].trains_ns >= run.apart_ns;
    for (uint32_t i = 0; i < run.workers + run.newcomers; i++) {
        const struct worker *worker = &run.all[i];
        const char *what = worker->killed ? NULL : what_is_wrong(worker);
        char doing[80] = "";
        if (worker->ending == RUNS) sim_process_describe(worker->host, doing, sizeof doing);
        if (what)
            fail_seed("h%u %s: %s, step %llu, round %llu: %s %s", worker->host, what,
                      weft_status_name(worker->status), (unsigned long long)worker->committed,
                      (unsigned long long)worker->round, worker->text, doing);
    }
}

/* Sessions of dead and hanging programs are dropped with the arena; the process must not search for them. */
static void forget_sessions(void)
{
    for (uint32_t i = 0; i < run.workers + run.newcomers; i++)
        if (run.all[i].session) weft_list_remove(&run.all[i].session->live.link);
}

static bool run_seed(struct weft_env *env, uint64_t seed, bool updates, bool auto_codec,
                     struct weft_config *shards_config)
{
    struct weft_sim_options options;
    struct weft_coordinator_server *server;
    seed_random(seed);
    arena_reset();
    memset(&run, 0, sizeof run);
    run.updates = updates;
    run.auto_codec = auto_codec;
    choose_job(seed);
    if (shards_config) choose_shards(shards_config);
    weft_sim_options_init(&options);
    options.seed = seed;
    options.host_count = FIRST_WORKER + run.workers + run.newcomers + run.shards;
    options.still_clock = still;
    options.latency_ns = 1000 + roll(20000);
    options.jitter_ns = roll(10000);
    if (coded_too && run.auto_codec && seed % 2) options.bytes_per_second = 20000000; /* a codec pays */
    options.detect_ns = 100000 + roll(WEFT_MS(1) << roll(8));
    if (weft_sim_create(env, &options, &run.sim) < 0) return false;
    sim_processes_begin(run.sim, options.host_count);
    sim_net_begin(sim_process_host, wake, net_random, 1000 + roll(WEFT_MS(1) << roll(4)));
    if (breaks) sim_net_break(COORDINATOR, 0, 10 + roll(100));
    if (weft_loop_create(weft_sim_env(run.sim, HAND), NULL, &run.hand) < 0 ||
        weft_sim_add(run.sim, HAND, run.hand) < 0)
        return false;
    if (!start_coordinator(weft_sim_env(run.sim, COORDINATOR), &server)) return false;
    for (uint32_t i = 0; i < run.workers + run.newcomers; i++)
        if (sim_process_start(run.all[i].host, run.all[i].after_ns, worker_main, &run.all[i]) < 0)
            return false;
    for (uint32_t i = 0; i < run.shards; i++)
        if (sim_process_start(first_shard() + i, roll(WEFT_MS(1)), shard_main, (void *)(uintptr_t)i) < 0)
            return false;
    choose_faults(weft_sim_env(run.sim, HAND));
    if (run.shards) choose_late_shards(weft_sim_env(run.sim, HAND));
    if (run.shards && with_copies) choose_shard_death(weft_sim_env(run.sim, HAND));
    else if (run.shards) choose_shard_fault();
    weft_sim_run(run.sim, &run.all_done, WEFT_SECONDS(300));
    check_ends();
    find_unheard(server);
    run.moved_bytes = moved_bytes(server);
    check_agreement();
    forget_sessions();
    return !run.why[0]; /* all memory is in the arena */
}

int main(int argc, char **argv)
{
    uint64_t seeds = 20, first = 1, found_count = 0, kills = 0, cuts = 0, aborts = 0, shrunk = 0, grew = 0,
             joined = 0, steps = 0, again = 0, finished = 0, failed = 0, given_up = 0, apart = 0, chosen = 0,
             closed_before = 0, moved = 0, frees = 0, frees_again = 0;
    bool updates = false, auto_codec = false, shards = false, with_found = false, all_still = false;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--seeds") == 0 && i + 1 < argc) seeds = strtoull(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--first") == 0 && i + 1 < argc) first = strtoull(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--updates") == 0) updates = true;
        else if (strcmp(argv[i], "--late") == 0) with_late = true;
        else if (strcmp(argv[i], "--breaks") == 0) breaks = true;
        else if (strcmp(argv[i], "--separate") == 0) sim_processes_separate(separate = true);
        else if (strcmp(argv[i], "--auto-codec") == 0) auto_codec = true;
        else if (strcmp(argv[i], "--shards") == 0) shards = true;
        else if (strcmp(argv[i], "--copies") == 0) shards = with_copies = true;
        else if (strcmp(argv[i], "--moves") == 0) shards = with_copies = with_moves = true;
        else if (strcmp(argv[i], "--found") == 0) with_found = true;
        else if (strcmp(argv[i], "--newcomers") == 0) newcomers_too = true;
        else if (strcmp(argv[i], "--coded") == 0) coded_too = true;
        else if (strcmp(argv[i], "--frees") == 0) with_frees = true;
        else if (strcmp(argv[i], "--still") == 0) all_still = true;
        else if (strcmp(argv[i], "--verbose") == 0) verbose = true;
        else {
            fprintf(stderr,
                    "usage: %s [--seeds N] [--first S] [--found] [--updates] [--auto-codec] [--shards] "
                    "[--newcomers] [--coded] [--copies] [--moves] "
                    "[--still] [--late] [--breaks] [--separate] [--frees] [--verbose]\n",
                    argv[0]);
            return 2;
        }
    }
    const uint64_t *again_first = shards ? found_with_shards : found;
    if (with_found)
        found_count =
            shards ? sizeof found_with_shards / sizeof *found_with_shards : sizeof found / sizeof *found;
    setenv("WEFT_TRANSPORT_BACKEND", "sim", 1);
    if (coded_too) setenv("WEFT_SERVER_HASH_EVERY", "1", 1);
    if (coded_too) setenv("WEFT_CLIENT_HASH_EVERY", "2", 1);
    struct weft_env env = *weft_env_system();
    struct weft_config *config = NULL;
    if (shards && (weft_config_load(weft_env_system(), &config, NULL) < 0 ||
                   weft_config_set(config, "client.deadline", "20s", "test", NULL) < 0 ||
                   weft_config_set(config, "server.receive_bytes", "1MiB", "test", NULL) < 0 ||
                   weft_config_set(config, "server.copy_bytes", "1MiB", "test", NULL) < 0))
        return 1;
    if (!arena_make(&env)) return fprintf(stderr, "no memory for the arena\n"), 1;
    env.log = log_line;
    if (verbose) env.log_level = WEFT_LOG_DEBUG;
    struct timespec start, end;
    clock_gettime(CLOCK_MONOTONIC, &start);
    for (uint64_t i = 0; i < found_count + seeds; i++) {
        uint64_t seed = i < found_count ? again_first[i] : first + i - found_count;
        still = all_still || i < found_count;
        if (!run_seed(&env, seed, updates, auto_codec, config)) {
            printf("seed %llu: %s\nreplay: %s --first %llu --seeds 1%s%s%s%s%s%s%s%s%s%s --verbose\n",
                   (unsigned long long)seed, run.why, argv[0], (unsigned long long)seed,
                   updates ? " --updates" : "", auto_codec ? " --auto-codec" : "",
                   with_moves    ? " --moves"
                   : with_copies ? " --copies"
                   : shards      ? " --shards"
                                 : "",
                   newcomers_too ? " --newcomers" : "", coded_too ? " --coded" : "", still ? " --still" : "",
                   with_late ? " --late" : "", breaks ? " --breaks" : "", separate ? " --separate" : "",
                   with_frees ? " --frees" : "");
            return 1;
        }
        chosen += run.chosen;
        closed_before += run.closed_before;
        moved += run.moved_bytes;
        kills += run.kills, cuts += run.cut[0] != NULL, aborts += run.aborter != NULL, shrunk += run.shrunk,
            frees += run.frees, frees_again += run.frees_again;
        grew += run.grew, joined += run.joined, steps += run.steps_done, again += run.again;
        apart += run.suspects != 0;
        for (uint32_t w = 0; w < run.workers + run.newcomers; w++) {
            const struct worker *worker = &run.all[w];
            finished += worker->ending == FINISHED;
            failed += worker->ending == FAILED;
            given_up += worker->apart && worker->trains && worker->ending == FAILED;
        }
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    if (seeds >= 400 && (!kills || !cuts || !shrunk || !joined || ((!shards || newcomers_too) && !grew) ||
                         !again || !finished || !failed || !apart)) {
        printf("in %llu jobs something did not happen at all: %llu deaths, %llu broken links, %llu times "
               "notified of lost ranks, %llu of new ones, %llu joined, %llu steps run again, "
               "%llu workers finished, %llu failed, %llu jobs with cuts or stops\n",
               (unsigned long long)seeds, (unsigned long long)kills, (unsigned long long)cuts,
               (unsigned long long)shrunk, (unsigned long long)grew, (unsigned long long)joined,
               (unsigned long long)again, (unsigned long long)finished, (unsigned long long)failed,
               (unsigned long long)apart);
        return 1;
    }
    if (with_moves && seeds >= 20 && !moved)
        return printf("in %llu jobs no copy was made again\n", (unsigned long long)seeds), 1;
    if (with_frees && seeds >= 100 && (!frees || !frees_again))
        return printf("in %llu jobs %llu ranks freed the tensor, and %llu calls were repeated\n",
                      (unsigned long long)seeds, (unsigned long long)frees, (unsigned long long)frees_again),
               1;
    if (with_frees)
        printf("%llu ranks freed the tensor, %llu calls were repeated\n", (unsigned long long)frees,
               (unsigned long long)frees_again);
    if (auto_codec && seeds >= 20 && !chosen)
        return printf("in %llu jobs no codec was ever chosen\n", (unsigned long long)seeds), 1;
    if (shards && seeds >= 400 && !closed_before)
        return printf("in %llu jobs no chunk was closed by an earlier try of a step that was run again\n",
                      (unsigned long long)seeds),
               1;
    if (shards)
        printf("%llu results of chunks were of an earlier try's members\n",
               (unsigned long long)closed_before);
    double seconds = (double)(end.tv_sec - start.tv_sec) + (double)(end.tv_nsec - start.tv_nsec) / 1e9;
    printf(
        "%llu jobs, %llu deaths, %llu broken links, %llu aborts, %llu jobs with cuts or stops: no hang, "
        "no wrong sum; %llu steps of ranks good, %llu run again, %llu times notified of lost ranks, %llu of "
        "new ones, "
        "%llu joined; %llu workers finished, %llu ended with the culprit named, of them %llu that were "
        "cut off or stopped (%.1f ms a seed)\n",
        (unsigned long long)seeds, (unsigned long long)kills, (unsigned long long)cuts,
        (unsigned long long)aborts, (unsigned long long)apart, (unsigned long long)steps,
        (unsigned long long)again, (unsigned long long)shrunk, (unsigned long long)grew,
        (unsigned long long)joined, (unsigned long long)finished, (unsigned long long)failed,
        (unsigned long long)given_up, seconds * 1e3 / (double)seeds);
    weft_config_free(config);
    free(arena);
    return 0;
}
