/* mailbox.h - many senders, one receiver, no lock: the inside of weft_loop_post and weft_net_post.
 * A stack that the receiver empties with one exchange and turns around. Letters are never popped one
 * by one, so the stack has no ABA problem. Internal to base. */
#ifndef WEFT_BASE_MAILBOX_H
#define WEFT_BASE_MAILBOX_H

#include <stdatomic.h>
#include <stdbool.h>

#include "base/loop.h"

struct mailbox {
    _Atomic(struct weft_mail *) newest;
};

/* Any thread. Sequentially consistent: a sender that then finds the receiver awake may rely on the
 * letter being seen (loop.c says why). */
static inline void mailbox_push(struct mailbox *box, struct weft_mail *mail)
{
    struct weft_mail *head = atomic_load_explicit(&box->newest, memory_order_relaxed);
    do {
        mail->next = head;
    } while (!atomic_compare_exchange_weak_explicit(&box->newest, &head, mail, memory_order_seq_cst,
                                                    memory_order_relaxed));
}

static inline bool mailbox_empty(struct mailbox *box)
{
    return atomic_load_explicit(&box->newest, memory_order_seq_cst) == NULL;
}

/* Receiver only: run what has been posted so far, oldest first; what the letters post waits for the
 * next call. Returns how many ran. */
static inline int mailbox_run(struct mailbox *box)
{
    if (!atomic_load_explicit(&box->newest, memory_order_relaxed)) return 0;
    struct weft_mail *newest = atomic_exchange_explicit(&box->newest, NULL, memory_order_acquire);
    struct weft_mail *oldest = NULL;
    while (newest) {
        struct weft_mail *next = newest->next;
        newest->next = oldest;
        oldest = newest;
        newest = next;
    }
    int count = 0;
    while (oldest) {
        struct weft_mail *next = oldest->next; /* fn may free or post the letter again */
        oldest->fn(oldest);
        oldest = next;
        count++;
    }
    return count;
}

#endif
