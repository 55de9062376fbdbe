/* mailbox.h - lock-free queue with many senders and one receiver; used by weft_loop_post and weft_net_post.
 *
 * A stack that the receiver empties with one exchange and reverses. No single entry is popped, so there is no
 * ABA problem. Internal to base. */
#ifndef WEFT_BASE_LOOP_MAILBOX_H
#define WEFT_BASE_LOOP_MAILBOX_H

#include <stdatomic.h>
#include <stdbool.h>

#include "base/loop/loop.h"

struct mailbox {
    _Atomic(struct weft_command *) newest;
};

/* Any thread. Sequentially consistent: if the sender then finds the receiver awake, the receiver will see the
 * command (loop.c). */
static inline void mailbox_push(struct mailbox *box, struct weft_command *command)
{
    struct weft_command *head = atomic_load_explicit(&box->newest, memory_order_relaxed);
    do {
        command->next = head;
    } while (!atomic_compare_exchange_weak_explicit(&box->newest, &head, command, memory_order_seq_cst,
                                                    memory_order_relaxed));
}

static inline bool mailbox_empty(struct mailbox *box)
{
    return atomic_load_explicit(&box->newest, memory_order_seq_cst) == NULL;
}

/* Receiver only: runs the commands posted so far, oldest first. Commands posted by them wait for the next
 * call. Returns how many ran. */
static inline int mailbox_run(struct mailbox *box)
{
    if (!atomic_load_explicit(&box->newest, memory_order_relaxed)) return 0;
    struct weft_command *newest = atomic_exchange_explicit(&box->newest, NULL, memory_order_acquire);
    struct weft_command *oldest = NULL;
    while (newest) {
        struct weft_command *next = newest->next;
        newest->next = oldest;
        oldest = newest;
        newest = next;
    }
    int count = 0;
    while (oldest) {
        struct weft_command *next = oldest->next; /* fn may free the command or post it again */
        oldest->fn(oldest);
        oldest = next;
        count++;
    }
    return count;
}

#endif
