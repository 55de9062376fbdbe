/* list.h - intrusive doubly linked list, and container_of. A node is in one list at a time. An initialised or
 * removed node points to itself. */
#ifndef WEFT_BASE_LIST_H
#define WEFT_BASE_LIST_H

#include <stdbool.h>
#include <stddef.h>

struct weft_list {
    struct weft_list *next, *prev;
};

#define weft_container_of(pointer, type, member) \
    ((type *)((char *)(pointer) - offsetof(type, member)))

static inline void weft_list_init(struct weft_list *node) { node->next = node->prev = node; }
static inline bool weft_list_empty(const struct weft_list *head) { return head->next == head; }
static inline void weft_list_insert_before(struct weft_list *at, struct weft_list *node)
{
    node->next = at;
    node->prev = at->prev;
    at->prev->next = node;
    at->prev = node;
}
static inline void weft_list_append(struct weft_list *head, struct weft_list *node)
{
    weft_list_insert_before(head, node);
}
static inline void weft_list_prepend(struct weft_list *head, struct weft_list *node)
{
    weft_list_insert_before(head->next, node);
}
static inline void weft_list_remove(struct weft_list *node)
{
    node->prev->next = node->next;
    node->next->prev = node->prev;
    weft_list_init(node);
}
/* Moves all nodes of `from` to `to`, which need not be initialised. */
static inline void weft_list_take(struct weft_list *to, struct weft_list *from)
{
    weft_list_init(to);
    if (weft_list_empty(from)) return;
    *to = *from;
    to->next->prev = to->prev->next = to;
    weft_list_init(from);
}
#define weft_list_first(head, type, member) weft_container_of((head)->next, type, member)
/* The current node may be removed. */
#define weft_list_foreach(node, spare, head) \
    for ((node) = (head)->next, (spare) = (node)->next; (node) != (head); \
         (node) = (spare), (spare) = (node)->next)

#endif
