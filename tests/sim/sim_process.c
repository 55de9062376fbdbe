/* sim_process.c - see sim_process.h. A program is a pollable of its own loop: it has no work until its
 * wait completes. Stacks are reused by later simulations. */
#include "tests/sim/sim_process.h"

#include "base/os/sanitizer.h"
#include "tests/sim/sim_net.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#if WEFT_ADDRESS_SANITIZER
void __sanitizer_start_switch_fiber(void **kept, const void *bottom, size_t bytes);
void __sanitizer_finish_switch_fiber(void *kept, const void **bottom_out, size_t *bytes_out);
#else
static void __sanitizer_start_switch_fiber(void **kept, const void *bottom, size_t bytes) {}
static void __sanitizer_finish_switch_fiber(void *kept, const void **bottom_out, size_t *bytes_out) {}
#endif

enum { STACK_BYTES = 256 << 10 };

struct process {
    struct weft_env *env;
    struct weft_loop *loop;
    struct weft_pollable pollable;
    struct weft_timer timer;       /* for the time limit: the simulation must return by then */
    void (*main)(void *context);
    void *context;
    bool started, ended;
    bool (*fact)(void *context);
    void *fact_context;
    uint64_t until_ns;
    void *stack, *kept;            /* kept: of the address sanitizer */
    ucontext_t here;
};

static struct process processes[SIM_PROCESSES_MAX], *current;
static struct weft_sim *simulation;
static uint32_t host_count;
static ucontext_t outside;
static const void *outside_bottom;
static size_t outside_bytes;

/* ---- switch of stacks ---- */

static void go_outside(struct process *process)
{
    current = NULL;
    __sanitizer_start_switch_fiber(process->ended ? NULL : &process->kept, outside_bottom, outside_bytes);
    swapcontext(&process->here, &outside);
    __sanitizer_finish_switch_fiber(process->kept, &outside_bottom, &outside_bytes);
}

static void begin(void)
{
    struct process *process = current;
    __sanitizer_finish_switch_fiber(NULL, &outside_bottom, &outside_bytes);
    process->main(process->context);
    process->ended = true;
    go_outside(process);
}

static void resume(struct process *process)
{
    void *kept;
    current = process;
    __sanitizer_start_switch_fiber(&kept, process->stack, STACK_BYTES);
    swapcontext(&outside, &process->here);
    __sanitizer_finish_switch_fiber(kept, NULL, NULL);
}

static int process_progress(struct weft_pollable *pollable, int budget)
{
    struct process *process = weft_container_of(pollable, struct process, pollable);
    if (process->ended) return 0;
    bool due = weft_now_ns(process->env) >= process->until_ns;
    if (!due && (!process->fact || !process->fact(process->fact_context))) return 0;
    resume(process);
    return 1;
}

static void timer_fired(struct weft_timer *timer) {}

static void yield_to_others(struct process *process, bool (*fact)(void *), void *context, uint64_t until_ns)
{
    process->fact = fact;
    process->fact_context = context;
    process->until_ns = until_ns;
    if (until_ns != WEFT_NEVER) weft_timer_start(process->loop, &process->timer, until_ns);
    go_outside(process);
    weft_timer_stop(process->loop, &process->timer);
}

static int wait(struct weft_env *env, bool (*fact)(void *), void *context, uint64_t until_ns)
{
    if (fact(context)) return WEFT_OK;
    WEFT_ASSERT(current && current->env == env);
    yield_to_others(current, fact, context, until_ns);
    return fact(context) ? WEFT_OK : WEFT_ERR_DEADLINE;
}

void sim_process_sleep(uint64_t duration_ns)
{
    yield_to_others(current, NULL, NULL, weft_now_ns(current->env) + duration_ns);
}

/* ---- loops ---- */

uint32_t sim_process_host(struct weft_env *env)
{
    uint32_t host = 0;
    while (host < host_count && weft_sim_env(simulation, host) != env) host++;
    return host;
}

static int run_loop(struct weft_env *env, struct weft_loop *loop)
{
    return weft_sim_add(simulation, sim_process_host(env), loop);
}
static void end_loop(struct weft_env *env, struct weft_loop *loop) { weft_sim_remove(simulation, loop); }

/* Without this all hosts have one kernel, which knows the processes of hosts that have died visibly. */
static bool have_own_kernels;
void sim_processes_separate(bool have_own) { have_own_kernels = have_own; }

static void identify(struct weft_env *env, struct weft_process_identity *own_out)
{
    *own_out = (struct weft_process_identity){.space = 1, .pid = sim_process_host(env), .start = 1};
}

static int process_state(struct weft_env *env, const struct weft_process_identity *identity)
{
    if (have_own_kernels) return WEFT_PROCESS_UNKNOWN;
    return sim_net_has_died((uint32_t)identity->pid) ? WEFT_PROCESS_DEAD : WEFT_PROCESS_ALIVE;
}

static const struct weft_virtual_time virtual_time = {
    .wait = wait, .run = run_loop, .end = end_loop, .identify = identify, .process_state = process_state};

/* ---- create, free ---- */

void sim_processes_begin(struct weft_sim *sim, uint32_t hosts)
{
    simulation = sim;
    host_count = hosts;
    for (uint32_t i = 0; i < SIM_PROCESSES_MAX; i++)
        processes[i] = (struct process){.stack = processes[i].stack};
    for (uint32_t i = 0; i < hosts; i++) weft_sim_env(sim, i)->virtual_time = &virtual_time;
}

enum weft_status sim_process_start(uint32_t host, uint64_t after_ns, void (*main)(void *context),
                                   void *context)
{
    struct process *process = &processes[host];
    if (!process->stack)
        process->stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (process->stack == MAP_FAILED) abort();
    process->env = weft_sim_env(simulation, host);
    process->main = main;
    process->context = context;
    process->started = true;
    process->until_ns = weft_now_ns(process->env) + after_ns;
    process->pollable = (struct weft_pollable){.fd = -1, .progress = process_progress};
    weft_timer_init(&process->timer, timer_fired);
    getcontext(&process->here);
    process->here.uc_stack.ss_sp = process->stack;
    process->here.uc_stack.ss_size = STACK_BYTES;
    makecontext(&process->here, begin, 0);
    enum weft_status status = weft_loop_create(process->env, NULL, &process->loop);
    if (status == WEFT_OK) status = weft_loop_add(process->loop, &process->pollable);
    if (status == WEFT_OK) status = weft_sim_add(simulation, host, process->loop);
    if (status == WEFT_OK) status = weft_timer_start(process->loop, &process->timer, process->until_ns);
    return status;
}

bool sim_process_ended(uint32_t host) { return processes[host].ended; }

void sim_process_describe(uint32_t host, char *out, size_t out_bytes)
{
    const struct process *process = &processes[host];
    snprintf(out, out_bytes, "%s, until %.6f s",
             process->ended  ? "ended"
             : process->fact ? "waits"
                             : "sleeps",
             (double)process->until_ns / 1e9);
}
