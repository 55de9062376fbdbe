/* on_host.cc - a block's threads as fibers: see cuda_runtime.h. Fibers are made once and wait for the next
 * block; they change over by _setjmp and _longjmp, which cost no system call. */
#undef _FORTIFY_SOURCE
#include "cuda_runtime.h"

#include <setjmp.h>
#include <stdio.h>
#include <ucontext.h>

dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace
{

constexpr unsigned THREADS_MAX = 1024, LANES = 32;
constexpr size_t STACK_BYTES = 64 << 10;

enum fiber_state { IDLE, READY, AT_BLOCK, AT_WARP };
struct fiber {
    ucontext_t first;
    jmp_buf at;
    bool made;
    fiber_state state;
    unsigned exchanges; /* of this block: two in a row use two slots, so one barrier is enough */
};
fiber fibers[THREADS_MAX];
jmp_buf scheduler;
unsigned running;
uint64_t slots[THREADS_MAX / LANES][2][LANES];
void (*job)(void *);
void *job_context;
uint64_t random_state = 1;

unsigned draw(unsigned below)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)((random_state >> 33) % below);
}

void leave(fiber_state state)
{
    fiber &self = fibers[running];
    self.state = state;
    if (_setjmp(self.at) == 0) _longjmp(scheduler, 1);
}

void live()
{
    for (;;) {
        job(job_context);
        leave(IDLE);
    }
}

void enter(unsigned number)
{
    running = number;
    threadIdx = dim3(number);
    fiber &next = fibers[number];
    if (_setjmp(scheduler) != 0) return;
    if (next.made) _longjmp(next.at, 1);
    next.made = true;
    getcontext(&next.first);
    next.first.uc_stack.ss_sp = malloc(STACK_BYTES);
    next.first.uc_stack.ss_size = STACK_BYTES;
    if (!next.first.uc_stack.ss_sp) abort();
    makecontext(&next.first, live, 0);
    setcontext(&next.first);
}

/* Those of [first, end) that have not returned, when all of them wait for `what`. */
bool release(unsigned first, unsigned end, fiber_state what)
{
    bool any = false;
    for (unsigned t = first; t < end; t++) {
        if (fibers[t].state != what && fibers[t].state != IDLE) return false;
        any = any || fibers[t].state == what;
    }
    for (unsigned t = first; t < end; t++)
        if (fibers[t].state == what) fibers[t].state = READY;
    return any;
}

void run_block(unsigned threads)
{
    unsigned order[THREADS_MAX];
    for (unsigned t = 0; t < threads; t++) {
        order[t] = t;
        fibers[t].state = READY;
        fibers[t].exchanges = 0;
    }
    memset(slots, 0, sizeof slots);
    for (bool moved = true; moved;) {
        moved = false;
        for (unsigned t = threads; t > 1; t--) {
            const unsigned other = draw(t), swapped = order[t - 1];
            order[t - 1] = order[other];
            order[other] = swapped;
        }
        for (unsigned t = 0; t < threads; t++)
            if (fibers[order[t]].state == READY) {
                enter(order[t]);
                moved = true;
            }
        for (unsigned first = 0; first < threads; first += LANES)
            moved = release(first, first + LANES < threads ? first + LANES : threads, AT_WARP) || moved;
        moved = release(0, threads, AT_BLOCK) || moved;
    }
    for (unsigned t = 0; t < threads; t++)
        if (fibers[t].state != IDLE) {
            fprintf(stderr, "on_host: thread %u of block %u waits for a barrier that other threads do not reach\n",
                    t, blockIdx.x);
            abort();
        }
}

} // namespace

void on_host_block_barrier()
{
    leave(AT_BLOCK);
}

const uint64_t *on_host_exchange(uint64_t mine)
{
    const unsigned warp = running / LANES, slot = fibers[running].exchanges++ % 2;
    slots[warp][slot][running % LANES] = mine;
    leave(AT_WARP);
    return slots[warp][slot];
}

void on_host_launch(dim3 grid, dim3 block, void (*body)(void *), void *context)
{
    job = body;
    job_context = context;
    gridDim = grid;
    blockDim = block;
    for (unsigned y = 0; y < grid.y; y++)
        for (unsigned b = 0; b < grid.x; b++) {
            blockIdx = dim3(b, y);
            run_block(block.x);
        }
}
