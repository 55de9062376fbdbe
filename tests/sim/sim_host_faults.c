/* sim_host_faults.c - see sim_host_faults.h. */
#include "tests/sim/sim_host_faults.h"

#include "tests/sim/sim_net.h"

struct running_fault {
    struct weft_timer timer;
    struct sim_fault what;
    struct weft_sim *sim;
    struct weft_loop *hand;
    bool on;
};

static void apply(const struct running_fault *fault)
{
    for (uint32_t a = 0; a < SIM_NET_HOSTS_MAX; a++) {
        if (fault->what.stopped >> a & 1) weft_sim_freeze(fault->sim, a, fault->on);
        for (uint32_t b = 0; b < SIM_NET_HOSTS_MAX; b++) {
            if (a == b || !(fault->what.left >> a & 1) || !(fault->what.right >> b & 1)) continue;
            weft_sim_partition(fault->sim, a, b, fault->on);
            sim_net_cut(a, b, fault->on);
        }
    }
}

static void turn(struct weft_timer *timer)
{
    struct running_fault *fault = weft_container_of(timer, struct running_fault, timer);
    fault->on = !fault->on;
    apply(fault);
    bool over = fault->on ? fault->what.lasts_ns == WEFT_NEVER : fault->what.times <= 1;
    if (!fault->on) fault->what.times--;
    if (!over) weft_timer_start(fault->hand, timer, weft_sim_now_ns(fault->sim) + fault->what.lasts_ns);
}

enum weft_status sim_fault_add(struct weft_sim *sim, struct weft_loop *hand, const struct sim_fault *fault)
{
    struct running_fault *running = weft_alloc_zero(weft_loop_env(hand), sizeof *running);
    if (!running) return WEFT_ERR_NO_MEMORY;
    running->what = *fault;
    running->sim = sim;
    running->hand = hand;
    weft_timer_init(&running->timer, turn);
    return weft_timer_start(hand, &running->timer, fault->at_ns);
}
