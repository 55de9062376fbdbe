/* path.h - another way to carry out operations than messages between plans.
 *
 * The table coll_path is the only symbol of the path that core/ uses; onehost/path.c fills it. A path
 * decides per call whether it accepts it, keeps its state behind struct weft_group.onehost and struct
 * weft_coll.onehost, and ends each accepted operation with coll_finish(), or returns it to the plan by
 * messages with coll_mark_ready(). All functions run on the thread that holds the loop. A group without
 * state of the path is allowed everywhere. */
#ifndef WEFT_COLLECTIVE_CORE_PATH_H
#define WEFT_COLLECTIVE_CORE_PATH_H

#include "collective/collective.h"

struct coll_header;
struct coll_sendrecv_counts;
struct op_pool;

/* State of an operation that core/ and the path share. */
struct coll_path_state {
    bool is_active;    /* the path carries it out now, else messages; written by the path */
    bool is_published; /* peers saw it before the post, and it is recorded; written by the path */
    /* this rank or its peer counts on its message; written by the path and the interpreter */
    bool expects_message;
};

struct coll_path_ops {
    /* ---- group ---- */
    bool (*is_possible)(const struct weft_group *group);
    enum weft_status (*open)(struct weft_group *group); /* if not open yet; errors: no memory */
    void (*verify)(struct weft_group *group);           /* periodic, while operations go by messages */
    void (*fence)(struct weft_group *group);            /* peers keep out of the buffers of all operations */
    void (*cost_changed)(struct weft_group *group);
    void (*close)(struct weft_group *group); /* frees the state */
    /* SEGMENT, VOTE and LEAVE messages; payload (bytes,) */
    void (*control)(struct weft_group *group, uint32_t rank, const struct coll_header *header,
                    const void *payload, size_t bytes);
    size_t (*address)(const struct weft_group *group, const void **payload_out); /* payload of SEGMENT */
    uint64_t (*vote)(const struct weft_group *group);                            /* for LEAVE */

    /* ---- memory shared by groups ---- */
    void (*pool_init)(struct op_pool *op_pool);
    void (*pool_free)(struct weft_env *env, struct op_pool *op_pool);
    void (*op_init)(struct weft_coll *coll);
    void (*op_free)(struct op_pool *op_pool, struct weft_coll *coll);

    /* ---- operations ---- */
    bool (*accepts)(const struct weft_group *group, const struct weft_coll_args *args);
    /* Reserves memory. can_fall_back_out: the operation can need its memory for messages, too. */
    enum weft_status (*prepare)(struct weft_group *group, const struct weft_coll_args *args,
                                bool *can_fall_back_out, struct weft_error *error);
    size_t (*scratch_bytes)(const struct weft_group *group, const struct weft_coll_args *args);
    bool (*starts_immediately)(const struct weft_group *group);
    void (*launch)(struct weft_coll *coll);             /* accepted, or a send or recv of carries_sendrecv */
    void (*launch_by_messages)(struct weft_coll *coll); /* not accepted: peers in memory may wait for it */
    void (*cancel)(struct weft_coll *coll);             /* is_active; peers keep out of its buffers */
    bool (*has_peer_in_buffers)(const struct weft_coll *coll);
    void (*finish)(struct weft_coll *coll); /* is_active or expects_message */
    bool (*waits_for)(const struct weft_coll *coll, uint32_t *rank_out, const char **phase_out);

    /* ---- sends and recvs ---- */
    bool (*carries_sendrecv)(const struct weft_group *group);
    bool (*sendrecv_reserve)(struct weft_group *group, uint32_t rank, bool sends); /* false: no memory */
    /* The send for this recv is there, from a rank that may have left. */
    bool (*send_has_arrived)(const struct weft_group *group, const struct weft_coll_args *args);
    bool (*recv_is_matched)(const struct weft_coll *coll);
    struct coll_sendrecv_counts (*sendrecv_counts)(const struct weft_group *group, uint32_t rank);
    bool (*has_unreceived_sends)(const struct weft_group *group);
};
extern const struct coll_path_ops coll_path;

#endif
