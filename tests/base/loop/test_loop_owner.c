/* test_loop_owner.c - enumerates every interleaving of base/loop/loop_owner.h.
 *
 * The functions are compiled here so that each stops before every atomic access (OWNER_STEP). A *world* is
 * the loop owner, its surroundings (mailbox, epoll, one pollable that must be armed) and a few threads. Each
 * thread is a script in the shape of loop.c: the engine thread, threads that post a command and wait for it,
 * posters, a network that delivers packets, a thread that makes a condition true, one that claims the loop,
 * one that stops it. From the first world on, every step of every thread is tried, until no new world is
 * found.
 *
 * Checked: no two threads step the loop at once; the loop is free at the end; and from every reachable world
 * the end (all scripts done, all commands and packets handled) is reachable. A lost wake-up or a deadlock is
 * a world from which it is not. A park period may or may not end, or `enum periods` of the scenario excludes
 * the end. A LONG one that begins too late to be woken ends always. The hooks can be made faulty; then the
 * checks must fail. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/list.h"
#include "tests/lib/check.h"

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wdangling-pointer" /* labels are not variables */
#endif
enum { MORE = -1 };
#define OWNER_BEGIN(call) do { if ((call)->resume_at) goto *(call)->resume_at; } while (0)
#define OWNER_STEP(call) do { __label__ here; (call)->resume_at = &&here; return MORE; here:; } while (0)
#define OWNER_END(call, result) \
    do {                        \
        int result_ = (result); \
        (call)->resume_at = NULL;      \
        (call)->flag = false;   \
        return result_;         \
    } while (0)
struct loop_owner;
static void wake(struct loop_owner *owner, void *word);
#define OWNER_WAKE(owner, word) wake(owner, word)
#include "base/loop/loop_owner.h"

enum { THREADS = 5 };
enum role { NO_ROLE = 0, ENGINE, WAITER, POSTER, NETWORK, NOTIFIER, CLAIMER, STOPPER };
enum sleeping { AWAKE = 0, IN_EPOLL, ON_EVENTS, ON_PARKED };
/* Position in a script. Engine thread and waiting threads share the middle part. */
enum place {
    START = 0,
    POSTED,
    TOP,
    TAKING,
    HOLDING,
    POLLING,
    READING,
    NOTIFYING,
    STEPPED,
    ARMING,
    SETTLING,
    SLEEPING,
    RISING,
    LEAVING,
    RELEASING,
    WAITING,
    WAITED,
    PARKING,
    PARKED,
    LOOKING,
    CLAIMING,
    UNCLAIMING,
    OVER,
};

struct thread {
    struct loop_owner_call call;
    uint8_t role, place, sleeping;
    bool lazy;        /* waiting thread: posts lazily */
    bool may_expire;  /* waiting thread, claimer: the deadline may pass at any time */
    bool worked, result, expired;
    bool is_long;        /* engine thread: parks LONG */
    bool is_held;        /* engine thread: parks UNTIL_RELEASED */
    bool soon;           /* engine thread: its LONG period ends soon */
    bool has_pending;    /* waiting thread: work is pending at its release */
    bool ending;         /* the engine thread has seen the stop */
    uint8_t command_bit; /* bit of its command; 0: it waits for the notifier's condition */
    uint8_t packets;     /* waiting thread: waits until so many are handled; network: delivers so many */
};

struct world {
    struct loop_owner owner;
    struct thread threads[THREADS];
    uint8_t command, done, awaited; /* commands as bits: in the mailbox, handled, all that will be posted */
    uint8_t packets, handled;       /* in the pollable; handled by progress */
    uint8_t inside;                 /* id + 1 of the thread that steps */
    uint8_t wakes;                  /* threads that epoll will wake, any of the sleepers */
    bool armed, readable, kicked, fact;
};

/* Faults of the hooks. */
enum fault {
    NO_FAULT = 0,
    KICKS_ARE_LOST,
    WAKES_ARE_LOST,
    MAILBOX_IS_NOT_SEEN,
    RELEASES_DO_NOT_ARM,
    OPEN_IS_NOT_SIGNALLED
};
static enum fault fault;
/* Park periods that may end. With SHORT_ENDS the mode after SHORT is LONG, else UNTIL_RELEASED. */
enum periods { NONE_ENDS = 0, SHORT_ENDS, EACH_ENDS };
static enum periods periods;
static const char *broken;

static struct world *world_of(struct loop_owner *owner)
{
    return weft_container_of(owner, struct world, owner);
}

static bool model_has_commands(struct loop_owner *owner)
{
    return fault != MAILBOX_IS_NOT_SEEN && world_of(owner)->command != 0;
}

/* A descriptor became readable: epoll wakes one sleeper, any of them. */
static void signal_epoll(struct world *world)
{
    unsigned sleepers = 0;
    for (int i = 0; i < THREADS; i++) sleepers += world->threads[i].sleeping == IN_EPOLL;
    if (world->wakes < sleepers) world->wakes++;
}

static void model_kick(struct loop_owner *owner)
{
    if (fault == KICKS_ARE_LOST) return;
    world_of(owner)->kicked = true;
    signal_epoll(world_of(owner));
}

static void wake(struct loop_owner *owner, void *word)
{
    struct world *world = world_of(owner);
    uint8_t sleeping = word == &owner->events ? ON_EVENTS : ON_PARKED;
    if (fault == WAKES_ARE_LOST) return;
    for (int i = 0; i < THREADS; i++)
        if (world->threads[i].sleeping == sleeping) world->threads[i].sleeping = AWAKE;
}

/* ---- the scripts: one call is one step ---- */

static bool fact_of(const struct world *world, const struct thread *thread)
{
    if (thread->packets) return world->handled >= thread->packets;
    return thread->command_bit ? (world->done & thread->command_bit) != 0 : world->fact;
}

/* A thread has started work that continues without it. */
static bool is_open(const struct world *world)
{
    for (int i = 0; i < THREADS; i++) {
        const struct thread *thread = &world->threads[i];
        bool begun =
            thread->role == WAITER && thread->place != START && (thread->command_bit || thread->packets);
        if (begun && !fact_of(world, thread)) return true;
    }
    return false;
}

static void enter(struct world *world, const struct thread *thread)
{
    if (world->inside) broken = "two threads step the loop";
    if (world->owner.thread != thread->call.thread) broken = "a thread steps a loop that it does not own";
    if (thread->role == WAITER && !world->owner.engine_running)
        broken = "a thread drives after the run has ended";
    world->inside = (uint8_t)(thread - world->threads + 1);
}

static unsigned how_parked(const struct thread *thread)
{
    return thread->is_held ? PARK_UNTIL_RELEASED : thread->is_long ? PARK_LONG : PARK_SHORT;
}

static void fall_asleep(struct world *world, struct thread *thread, enum sleeping how)
{
    if (thread->expired) return; /* timeouts are passed to the system call */
    thread->sleeping = (uint8_t)how;
    if (how == IN_EPOLL && (world->kicked || world->readable)) thread->sleeping = AWAKE;
    if (how == ON_EVENTS && world->owner.events != thread->call.seen) thread->sleeping = AWAKE;
    if (how == ON_PARKED && world->owner.park_mode != how_parked(thread)) thread->sleeping = AWAKE;
}

static bool arm(struct world *world)
{
    if (world->packets) return false;
    world->armed = true;
    return true;
}

/* A step of the loop, and what follows if it was idle: equal for engine thread and waiting thread. */
static void step_loop(struct world *world, struct thread *thread)
{
    bool engine = thread->role == ENGINE;
    int result;
    switch (thread->place) {
    case HOLDING:
        if (engine) result = world->owner.stop_requested == 0;
        else if ((result = loop_owner_can_step(&world->owner, &thread->call)) == MORE) return;
        thread->place = result ? POLLING : LEAVING;
        return;
    case POLLING:
        enter(world, thread);
        thread->worked = world->packets > 0;
        world->handled += world->packets;
        world->packets = 0;
        world->readable = false;
        thread->place = READING;
        return;
    case READING:
        world->inside = 0;
        enter(world, thread);
        thread->worked |= world->command != 0;
        thread->place = thread->worked ? NOTIFYING : STEPPED;
        world->done |= world->command;
        world->command = 0;
        return;
    case NOTIFYING: /* once for all commands and packets of the step */
        if (loop_owner_condition_changed(&world->owner, &thread->call) == MORE) return;
        thread->place = STEPPED;
        return;
    case STEPPED:
        if (thread->call.resume_at == NULL) world->inside = 0;
        if (engine) {
            if ((result = loop_owner_is_contended(&world->owner, &thread->call)) == MORE) return;
            thread->place = result ? LEAVING : thread->worked ? HOLDING : ARMING;
        } else {
            bool leave = fact_of(world, thread) || world->owner.claims > 0;
            if (thread->may_expire && thread->expired) leave = true;
            thread->place = leave ? LEAVING : thread->worked ? HOLDING : ARMING;
        }
        return;
    case ARMING:
        thread->place = arm(world) ? SETTLING : HOLDING;
        return;
    case SETTLING:
        result = engine ? loop_owner_engine_sleep_begin(&world->owner, &thread->call)
                        : loop_owner_sleep_begin(&world->owner, &thread->call, true);
        if (result == MORE) return;
        thread->place = RISING;
        if (result) thread->place = SLEEPING;
        return;
    case SLEEPING:
        thread->place = RISING;
        if (engine || !fact_of(world, thread)) fall_asleep(world, thread, IN_EPOLL);
        return;
    case RISING:
        result = engine ? loop_owner_engine_sleep_end(&world->owner, &thread->call)
                        : loop_owner_sleep_end(&world->owner, &thread->call);
        if (result == MORE) return;
        if (!engine) world->kicked = false;
        thread->place = engine ? TOP : HOLDING;
        return;
    }
}

/* acquire and release with work in between: the end of the engine thread, or a claimer's own. */
static void step_claim(struct world *world, struct thread *thread)
{
    int result;
    switch (thread->place) {
    case CLAIMING:
        if (loop_owner_claim_begin(&world->owner, &thread->call) == MORE) return;
        thread->place = TAKING;
        return;
    case TAKING:
        if ((result = loop_owner_try_acquire(&world->owner, &thread->call, true)) == MORE) return;
        thread->result = result;
        thread->place = result || thread->expired ? UNCLAIMING : WAITING;
        return;
    case WAITING:
        if ((result = loop_owner_claim_wait_begin(&world->owner, &thread->call)) == MORE) return;
        thread->place = result ? PARKED : WAITED;
        return;
    case PARKED:
        thread->place = WAITED;
        fall_asleep(world, thread, ON_EVENTS);
        return;
    case WAITED:
        if (loop_owner_wait_end(&world->owner, &thread->call) == MORE) return;
        thread->call.seen = 0;
        thread->place = TAKING;
        return;
    case UNCLAIMING:
        if (loop_owner_claim_end(&world->owner, &thread->call, thread->result) == MORE) return;
        thread->place = thread->result ? HOLDING : OVER;
        return;
    case HOLDING:
        if (world->inside == 0) enter(world, thread);
        if (thread->ending && loop_owner_engine_end(&world->owner, &thread->call) == MORE) return;
        thread->place = LEAVING;
        return;
    case LEAVING:
        world->inside = 0;
        thread->result = (world->owner.in_epoll & IN_EPOLL_ENGINE) && !arm(world);
        thread->place = RELEASING;
        return;
    case RELEASING:
        if (loop_owner_release(&world->owner, &thread->call, thread->result, false) == MORE) return;
        thread->place = OVER;
        return;
    }
}

static void step_engine(struct world *world, struct thread *thread)
{
    int result;
    if (thread->ending) {
        step_claim(world, thread);
        return;
    }
    switch (thread->place) {
    case START:
        thread->place = TOP;
        return;
    case TOP:
        thread->is_long = thread->is_held = false;
        thread->ending = world->owner.stop_requested != 0;
        thread->place = thread->ending ? CLAIMING : TAKING;
        if (thread->ending) thread->call.seen = 0;
        return;
    case TAKING:
        if ((result = loop_owner_engine_try_acquire(&world->owner, &thread->call)) == MORE) return;
        if (result) world->kicked = false;
        thread->place = result ? HOLDING : PARKING;
        return;
    case LEAVING:
        if (loop_owner_engine_yield(&world->owner, &thread->call) == MORE) return;
        thread->place = PARKING;
        return;
    case PARKING:
        if (world->owner.stop_requested && thread->call.resume_at == NULL) {
            thread->place = TOP;
            return;
        }
        if ((result = loop_owner_park_begin(&world->owner, &thread->call, how_parked(thread))) == MORE)
            return;
        thread->place = result ? PARKED : LOOKING;
        return;
    case PARKED:
        thread->place = LOOKING;
        thread->soon = thread->is_long && world->owner.thread == NULL && is_open(world);
        fall_asleep(world, thread, ON_PARKED);
        return;
    case LOOKING:
        if ((result = loop_owner_park_end(&world->owner, &thread->call)) == MORE) return;
        thread->result = result && periods == SHORT_ENDS;
        thread->place = thread->is_held ? TOP : WAITED;
        return;
    case WAITED:
        if ((result = loop_owner_park_review(&world->owner, &thread->call)) == MORE) return;
        thread->place = result == REVIEW_RUN ? TOP : PARKING;
        thread->is_held = periods != SHORT_ENDS && result == REVIEW_OWNER_UNCHANGED;
        thread->is_long = periods == SHORT_ENDS && !thread->result; /* woken: short period again */
        thread->result = thread->soon = false;
        return;
    default:
        step_loop(world, thread);
    }
}

static void step_waiter(struct world *world, struct thread *thread)
{
    int result;
    bool urgent;
    switch (thread->place) {
    case START:
        world->command |= thread->command_bit;
        thread->place = thread->command_bit ? POSTED : TOP;
        return;
    case POSTED:
        if (loop_owner_command_posted(&world->owner, &thread->call, thread->lazy) == MORE) return;
        thread->place = TOP;
        return;
    case TOP:
        thread->place = fact_of(world, thread) || thread->expired ? OVER : TAKING;
        return;
    case TAKING:
        if ((result = loop_owner_try_acquire(&world->owner, &thread->call, false)) == MORE) return;
        thread->place = result ? HOLDING : WAITING;
        return;
    case LEAVING: /* has_urgent_work */
        urgent = (world->owner.in_epoll & IN_EPOLL_ENGINE) && fault != RELEASES_DO_NOT_ARM && !arm(world);
        thread->result = urgent;
        thread->has_pending = periods == SHORT_ENDS && fault != OPEN_IS_NOT_SIGNALLED && is_open(world);
        thread->place = RELEASING;
        return;
    case RELEASING:
        result = loop_owner_release(&world->owner, &thread->call, thread->result, thread->has_pending);
        if (result == MORE) return;
        thread->result = thread->has_pending = false;
        thread->place = TOP;
        return;
    case WAITING:
        if ((result = loop_owner_wait_begin(&world->owner, &thread->call)) == MORE) return;
        thread->place = WAITED;
        if (result) thread->place = PARKED;
        return;
    case PARKED:
        thread->place = WAITED;
        if (!fact_of(world, thread)) fall_asleep(world, thread, ON_EVENTS);
        return;
    case WAITED:
        if (loop_owner_wait_end(&world->owner, &thread->call) == MORE) return;
        thread->call.seen = 0;
        thread->place = TOP;
        return;
    default:
        step_loop(world, thread);
    }
}

static void step_other(struct world *world, struct thread *thread)
{
    if (thread->place == START) {
        thread->place = POSTED;
        switch (thread->role) {
        case POSTER: world->command |= thread->command_bit; return;
        case NOTIFIER: world->fact = true; return;
        case STOPPER: world->owner.stop_requested = 1; return;
        default: /* NETWORK */
            world->packets++;
            if (world->armed) {
                world->armed = false;
                world->readable = true;
                signal_epoll(world);
            }
            thread->place = --thread->packets ? START : OVER;
            return;
        }
    }
    int result = thread->role == POSTER
                     ? loop_owner_command_posted(&world->owner, &thread->call, thread->lazy)
                 : thread->role == NOTIFIER ? loop_owner_condition_changed(&world->owner, &thread->call)
                                            : loop_owner_stop_requested(&world->owner, &thread->call);
    if (result != MORE) thread->place = OVER;
}

static void step_script(struct world *world, struct thread *thread)
{
    switch (thread->role) {
    case ENGINE: step_engine(world, thread); break;
    case WAITER: step_waiter(world, thread); break;
    case CLAIMER:
        if (thread->place == START) thread->place = CLAIMING;
        step_claim(world, thread);
        break;
    default: step_other(world, thread);
    }
}

/* The next call begins with a stop, and nothing visible before it: not a step of its own. */
static bool begins_with_stop(const struct thread *thread)
{
    if (thread->call.resume_at || thread->sleeping != AWAKE) return false;
    switch (thread->place) {
    case POSTED:
    case TAKING:
    case RELEASING:
    case WAITING:
    case WAITED:
    case SETTLING:
    case RISING:
    case NOTIFYING:
    case LOOKING:
    case UNCLAIMING: return true;
    case CLAIMING: return true;
    case HOLDING: return thread->role == WAITER;
    case LEAVING: return thread->role == ENGINE && !thread->ending;
    default: return false;
    }
}

/* Two counters only increase and are compared with an earlier value: the value read is current (0) or never
 * will be again (2). This keeps the number of worlds finite. */
static void forget_counts(struct world *world)
{
    for (int i = 0; i < THREADS; i++) {
        struct thread *thread = &world->threads[i];
        bool waits = thread->place == WAITING || thread->place == PARKED || thread->place == WAITED;
        if (thread->role == ENGINE && !thread->ending ? world->owner.acquires : waits && world->owner.events)
            thread->call.seen = 2;
    }
    world->owner.events = 0;
    world->owner.acquires = 0;
}

static void step_thread(struct world *world, struct thread *thread)
{
    step_script(world, thread);
    while (begins_with_stop(thread)) step_script(world, thread);
    forget_counts(world);
    if (thread->place == OVER) thread->call = (struct loop_owner_call){.thread = thread->call.thread};
}

/* ---- all worlds ---- */

enum { WORLDS_MAX = 2000000, TABLE = 1 << 22, CHOICES = 2 * THREADS };

static struct {
    struct world *worlds;
    uint32_t *next;     /* (worlds, CHOICES): successor by choice; 0: not possible (the first world is no
                         * successor) */
    uint32_t *table;    /* index + 1 by hash */
    uint32_t count;
    bool *ends;         /* the end is reachable */
} graph;

static uint64_t hash(const struct world *world)
{
    const uint64_t *words = (const uint64_t *)(const void *)world;
    uint64_t h = 0x9e3779b97f4a7c15u;
    for (size_t i = 0; i < sizeof *world / 8; i++) h = (h ^ words[i]) * 0xff51afd7ed558ccdu, h ^= h >> 29;
    return h;
}
_Static_assert(sizeof(struct world) % 8 == 0, "hashed by words");

static uint32_t find(const struct world *world)
{
    uint64_t at = hash(world) % TABLE;
    for (; graph.table[at]; at = (at + 1) % TABLE)
        if (memcmp(&graph.worlds[graph.table[at] - 1], world, sizeof *world) == 0) return graph.table[at] - 1;
    if (graph.count == WORLDS_MAX) {
        broken = "more worlds than expected";
        return 0;
    }
    graph.worlds[graph.count] = *world;
    graph.table[at] = ++graph.count;
    return graph.count - 1;
}

/* Can thread `i` make this choice? 0: continue; 1: its deadline passes or its park period ends. */
static bool possible(const struct world *world, int i, int choice)
{
    const struct thread *thread = &world->threads[i];
    if (thread->role == NO_ROLE || thread->place == OVER) return false;
    if (choice == 1) {
        bool ends = periods == EACH_ENDS || (periods == SHORT_ENDS && (!thread->is_long || thread->soon));
        if (thread->role == ENGINE) return ends && thread->sleeping == ON_PARKED && !thread->is_held;
        return thread->may_expire && !thread->expired;
    }
    return thread->sleeping == AWAKE || (thread->sleeping == IN_EPOLL && world->wakes > 0);
}

static void choose(struct world *world, int i, int choice)
{
    struct thread *thread = &world->threads[i];
    if (choice == 1) {
        if (thread->role != ENGINE) thread->expired = true;
        thread->sleeping = AWAKE;
        return;
    }
    if (thread->sleeping == IN_EPOLL) {
        world->wakes--;
        thread->sleeping = AWAKE;
    }
    step_thread(world, thread);
}

static bool is_end(const struct world *world)
{
    bool stopped = false;
    for (int i = 0; i < THREADS; i++) {
        const struct thread *thread = &world->threads[i];
        stopped |= thread->role == STOPPER;
        if (thread->role != NO_ROLE && thread->role != ENGINE && thread->place != OVER) return false;
    }
    if (stopped) return world->threads[0].place == OVER && world->owner.thread == NULL;
    return world->command == 0 && world->done == world->awaited && world->packets == 0;
}

/* Marks worlds from which the end is reachable: backwards until nothing changes. */
static void mark_ends(void)
{
    memset(graph.ends, 0, graph.count);
    for (bool changed = true; changed;) {
        changed = false;
        for (uint32_t w = graph.count; w-- > 0;) {
            if (graph.ends[w]) continue;
            bool ends = is_end(&graph.worlds[w]);
            for (int c = 0; c < CHOICES && !ends; c++) {
                uint32_t next = graph.next[(size_t)w * CHOICES + c];
                ends = next && graph.ends[next];
            }
            graph.ends[w] = ends;
            changed |= ends;
        }
    }
}

/* For debugging. */
static void print_world(const struct world *world)
{
    const struct loop_owner *owner = &world->owner;
    fprintf(stderr,
            "holder %u running %u stop %u claims %u waiters %u asleep %u parked %u; mail %x done %x packets "
            "%u armed %d readable %d kicked %d\n",
            (unsigned)(uintptr_t)owner->thread, owner->engine_running, owner->stop_requested, owner->claims,
            owner->waiters, owner->in_epoll, owner->park_mode, world->command, world->done, world->packets,
            world->armed, world->readable, world->kicked);
    for (int i = 0; i < THREADS; i++)
        if (world->threads[i].role)
            fprintf(stderr, "  thread %d: role %d at place %d, sleeping %d\n", i + 1, world->threads[i].role,
                    world->threads[i].place, world->threads[i].sleeping);
}

/* NULL, or the error. */
static const char *explore(const struct world *first)
{
    broken = NULL;
    memset(graph.table, 0, TABLE * sizeof *graph.table);
    graph.count = 0;
    find(first);
    for (uint32_t w = 0; w < graph.count && !broken; w++) {
        for (int c = 0; c < CHOICES && !broken; c++) {
            uint32_t *next = &graph.next[(size_t)w * CHOICES + c];
            *next = 0;
            if (!possible(&graph.worlds[w], c / 2, c % 2)) continue;
            struct world world;
            memcpy(&world, &graph.worlds[w], sizeof world);
            choose(&world, c / 2, c % 2);
            *next = find(&world);
        }
    }
    if (broken) return broken;
    mark_ends();
    for (uint32_t w = graph.count; w-- > 0;) {
        if (graph.ends[w]) continue;
        if (fault == NO_FAULT) print_world(&graph.worlds[w]);
        return "a world from which the end cannot be reached: a wake-up is lost, or a deadlock";
    }
    return NULL;
}

/* ---- scenarios ---- */

#define COMMAND(n) .command_bit = 1 << (n)
struct scenario {
    const char *name;
    enum periods periods;
    struct thread threads[THREADS - 1]; /* besides the engine thread */
};

static const struct scenario scenarios[] = {
    {"one strong post", NONE_ENDS, {{.role = POSTER, COMMAND(0)}}},
    {"two strong posts", NONE_ENDS, {{.role = POSTER, COMMAND(0)}, {.role = POSTER, COMMAND(1)}}},
    {"stop", NONE_ENDS, {{.role = STOPPER}}},
    {"stop and post", NONE_ENDS, {{.role = STOPPER}, {.role = POSTER, COMMAND(0)}}},
    {"packets alone", NONE_ENDS, {{.role = NETWORK, .packets = 3}}},
    {"a waiter", NONE_ENDS, {{.role = WAITER, COMMAND(0)}}},
    {"a waiter, lazy", EACH_ENDS, {{.role = WAITER, COMMAND(0), .lazy = true}}},
    {"a waiter that may leave early", NONE_ENDS, {{.role = WAITER, COMMAND(0), .may_expire = true}}},
    {"a lazy waiter that may leave early",
     EACH_ENDS,
     {{.role = WAITER, COMMAND(0), .lazy = true, .may_expire = true}}},
    {"a waiter and a post", NONE_ENDS, {{.role = WAITER, COMMAND(0)}, {.role = POSTER, COMMAND(1)}}},
    {"a waiter for a fact of another thread", NONE_ENDS, {{.role = WAITER}, {.role = NOTIFIER}}},
    {"a waiter for packets", EACH_ENDS, {{.role = WAITER, .packets = 2}, {.role = NETWORK, .packets = 2}}},
    {"a waiter that leaves, and packets",
     EACH_ENDS,
     {{.role = WAITER, COMMAND(0)}, {.role = NETWORK, .packets = 2}}},
    {"a waiter and a stop", EACH_ENDS, {{.role = WAITER, COMMAND(0), .may_expire = true}, {.role = STOPPER}}},
    {"a claim", NONE_ENDS, {{.role = CLAIMER}}},
    {"a claim and a post", NONE_ENDS, {{.role = CLAIMER}, {.role = POSTER, COMMAND(0)}}},
    {"a claim and a stop", NONE_ENDS, {{.role = CLAIMER}, {.role = STOPPER}}},
    {"a claim against a waiter", NONE_ENDS, {{.role = CLAIMER}, {.role = WAITER, COMMAND(0)}}},
    {"a claim that may be given up, against a waiter",
     NONE_ENDS,
     {{.role = CLAIMER, .may_expire = true}, {.role = WAITER, COMMAND(0)}}},
    {"two waiters", NONE_ENDS, {{.role = WAITER, COMMAND(0)}, {.role = WAITER, COMMAND(1)}}},
    {"two waiters, lazy",
     EACH_ENDS,
     {{.role = WAITER, COMMAND(0), .lazy = true}, {.role = WAITER, COMMAND(1), .lazy = true}}},
    {"two waiters for one fact of another thread",
     NONE_ENDS,
     {{.role = WAITER}, {.role = WAITER}, {.role = NOTIFIER}}},
    {"a lazy post", EACH_ENDS, {{.role = POSTER, COMMAND(0), .lazy = true}}},
    {"a lazy post beside a waiter",
     EACH_ENDS,
     {{.role = POSTER, COMMAND(0), .lazy = true}, {.role = WAITER, COMMAND(1)}}},
    {"a lazy post and a stop", NONE_ENDS, {{.role = POSTER, COMMAND(0), .lazy = true}, {.role = STOPPER}}},
    {"a strong post to an engine parked LONG beside a waiter",
     SHORT_ENDS,
     {{.role = POSTER, COMMAND(0)}, {.role = WAITER, COMMAND(1)}}},
    {"two lazy waiters, an engine parked LONG",
     SHORT_ENDS,
     {{.role = WAITER, COMMAND(0), .lazy = true}, {.role = WAITER, COMMAND(1), .lazy = true}}},
    {"a waiter that may leave before its packets come, an engine parked LONG",
     SHORT_ENDS,
     {{.role = WAITER, .packets = 2, .may_expire = true}, {.role = NETWORK, .packets = 2}}},
    {"the same beside a strong post",
     SHORT_ENDS,
     {{.role = WAITER, .packets = 1, .may_expire = true},
      {.role = NETWORK, .packets = 1},
      {.role = POSTER, COMMAND(0)}}},
    {"a lazy waiter, an engine parked LONG and a stop",
     SHORT_ENDS,
     {{.role = WAITER, COMMAND(0), .lazy = true, .may_expire = true}, {.role = STOPPER}}},
};

static void begin(const struct scenario *scenario, struct world *first)
{
    memset(first, 0, sizeof *first);
    first->owner.has_commands = model_has_commands;
    first->owner.wake = model_kick;
    first->owner.engine_running = 1;
    first->threads[0].role = ENGINE;
    for (int i = 1; i < THREADS; i++)
        memcpy(&first->threads[i], &scenario->threads[i - 1], sizeof first->threads[i]);
    for (int i = 0; i < THREADS; i++) {
        first->threads[i].call.thread = (const void *)(uintptr_t)(i + 1);
        first->awaited |= first->threads[i].command_bit;
    }
}

static const char *check(const struct scenario *scenario)
{
    static struct world first;
    begin(scenario, &first);
    periods = scenario->periods;
    return explore(&first);
}

static void every_interleaving_ends(void **state)
{
    fault = NO_FAULT;
    for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++) {
        const char *wrong = check(&scenarios[i]);
        print_message("%-50s %8u worlds\n", scenarios[i].name, graph.count);
        if (wrong) fail_msg("%s: %s", scenarios[i].name, wrong);
    }
}

static void a_faulty_hook_is_found(void **state)
{
    for (fault = KICKS_ARE_LOST; fault <= OPEN_IS_NOT_SIGNALLED; fault++) {
        bool found = false;
        for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios && !found; i++)
            found = check(&scenarios[i]) != NULL;
        if (!found) fail_msg("fault %d: nothing noticed", (int)fault);
    }
    fault = NO_FAULT;
}

static int set_up(void **state)
{
    graph.worlds = malloc(WORLDS_MAX * sizeof *graph.worlds);
    graph.next = malloc((size_t)WORLDS_MAX * CHOICES * sizeof *graph.next);
    graph.table = malloc(TABLE * sizeof *graph.table);
    graph.ends = malloc(WORLDS_MAX);
    return graph.worlds && graph.next && graph.table && graph.ends ? 0 : -1;
}

static int tear_down(void **state)
{
    free(graph.worlds);
    free(graph.next);
    free(graph.table);
    free(graph.ends);
    return 0;
}

/* ---- pending work at a release ---- */

/* A release with pending work wakes a LONG park, each wakes one UNTIL_RELEASED. */
static void releases_wake(void **state)
{
    static const unsigned parked[] = {PARK_NONE, PARK_SHORT, PARK_LONG, PARK_UNTIL_RELEASED};
    for (int i = 0; i < 8; i++) {
        struct world world;
        struct loop_owner_call call = {0};
        bool has_pending = i % 2;
        unsigned mode = parked[i / 2];
        memset(&world, 0, sizeof world);
        world.owner.has_commands = model_has_commands;
        world.owner.wake = model_kick;
        world.owner.park_mode = mode;
        world.owner.thread = &world;
        while (loop_owner_release(&world.owner, &call, false, has_pending) == MORE) {}
        assert_null(world.owner.thread);
        bool wakes = mode == PARK_UNTIL_RELEASED || (mode == PARK_LONG && has_pending);
        assert_int_equal(world.owner.park_mode, wakes ? PARK_NONE : mode);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(releases_wake),
        cmocka_unit_test(every_interleaving_ends),
        cmocka_unit_test(a_faulty_hook_is_found),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
