/* path.c - the ops table by which core/ calls the one-host path (collective/core/path.h), and the calls
 * that the path accepts. setup.c has the vote that enables the path for a group. */
#include "collective/core/path.h"

#include "collective/onehost/onehost.h"

/* ---- group ---- */
static void fence(struct weft_group *group)
{
    if (group->onehost) onehost_buffers_close(group->onehost, ONEHOST_SEQ_ENDED);
}

/* Prepared calls contain the memory that a plan by messages needs. */
static void cost_changed(struct weft_group *group)
{
    if (group->onehost) onehost_prepared_invalidate(group->onehost);
}

static void control(struct weft_group *group, uint32_t rank, const struct coll_header *header,
                    const void *payload, size_t bytes)
{
    switch (header->type) {
    case COLL_MESSAGE_LEAVE: onehost_peer_left(group, rank, header->count); break;
    case COLL_MESSAGE_ONEHOST_SEGMENT: onehost_address_received(group, rank, payload, bytes); break;
    case COLL_MESSAGE_ONEHOST_VOTE:
        onehost_vote_received(group, rank, (enum weft_status)header->status, header->sequence != 0);
        break;
    default: break;
    }
}

static size_t address(const struct weft_group *group, const void **payload_out)
{
    *payload_out = &group->onehost->setup.offer;
    return sizeof group->onehost->setup.offer;
}

static uint64_t vote(const struct weft_group *group)
{
    return group->onehost ? group->onehost->setup.vote : 0;
}

/* ---- memory shared by groups ---- */
static void pool_init(struct op_pool *op_pool)
{
    for (int i = 0; i < ONEHOST_SLOT_CLASSES; i++) weft_list_init(&op_pool->copyin_slots[i].holders);
}

static void pool_free(struct weft_env *env, struct op_pool *op_pool)
{
    onehost_stages_free(env, op_pool);
    onehost_pools_free(env, op_pool);
}

static void op_init(struct weft_coll *coll)
{
    weft_list_init(&coll->onehost.link);
    coll->onehost.phase = ONEHOST_BY_MESSAGES;
    coll->onehost.stage = NULL;
    coll->onehost.method_stats = NULL;
    coll->path = (struct coll_path_state){.is_active = false};
}

static void op_free(struct op_pool *op_pool, struct weft_coll *coll)
{
    onehost_stage_release(op_pool, coll->onehost.stage);
}

/* ---- operations ---- */
bool onehost_accepts(const struct weft_group *group, const struct weft_coll_args *args)
{
    if (!group->onehost || group->onehost->state == ONEHOST_DISABLED || args->plan != WEFT_PLAN_AUTO)
        return false;
    return coll_is_public(args->kind) && !coll_is_sendrecv(args->kind);
}

bool weft_group_uses_onehost(const struct weft_group *group, enum weft_coll_kind kind)
{
    return group->onehost && group->onehost->state == ONEHOST_ENABLED &&
           onehost_accepts(group, &(struct weft_coll_args){.kind = kind, .op = WEFT_SUM});
}

static enum weft_status prepare(struct weft_group *group, const struct weft_coll_args *args,
                                bool *can_fall_back_out, struct weft_error *error)
{
    struct onehost *onehost = group->onehost;
    if (!onehost_copyin_reserve(onehost, args)) {
        bool large = onehost_slot_class_of(onehost_slot_bytes(onehost, args)) == ONEHOST_LARGE;
        return weft_error_set(error, WEFT_ERR_NO_MEMORY,
                              "no memory for %s: %u bytes that this host's ranks see",
                              weft_coll_kind_name(args->kind),
                              (unsigned)(large ? ONEHOST_LARGE_POOL_BYTES : ONEHOST_SMALL_POOL_BYTES));
    }
    *can_fall_back_out = onehost->state != ONEHOST_ENABLED || !onehost_uses_copyin(group, args) ||
                         onehost_can_prefer_direct(group, args);
    return WEFT_OK;
}

static bool starts_immediately(const struct weft_group *group)
{
    return onehost_starts_immediately(group->onehost);
}

static void launch(struct weft_coll *coll)
{
    if (coll->flags.is_sendrecv) onehost_sendrecv_launch(coll);
    else onehost_launch(coll);
}

static void launch_by_messages(struct weft_coll *coll)
{
    if (onehost_open(coll->group) == WEFT_OK && coll->group->onehost)
        onehost_publish_message_call(coll->group->onehost, coll);
}

static void cancel(struct weft_coll *coll)
{
    if (coll->onehost.phase >= ONEHOST_PUBLISHED)
        onehost_buffers_close(coll->group->onehost, coll->onehost.seq + 1);
}

static bool has_peer_in_buffers(const struct weft_coll *coll)
{
    return coll->onehost.phase >= ONEHOST_PUBLISHED && onehost_buffers_have_peer(coll->group->onehost);
}

static void finish(struct weft_coll *coll)
{
    if (coll->path.is_active) onehost_unlink(coll);
    if (coll->path.expects_message) onehost_recv_drop_message(coll);
}

/* ---- sends and recvs ---- */
static bool sendrecv_reserve(struct weft_group *group, uint32_t rank, bool sends)
{
    return onehost_sendrecv_reserve(group->onehost, rank, sends);
}

static bool recv_is_matched(const struct weft_coll *coll)
{
    return coll->onehost.phase == ONEHOST_RECV_POSTED && onehost_recv_is_matched(coll);
}

static struct coll_sendrecv_counts sendrecv_counts(const struct weft_group *group, uint32_t rank)
{
    return onehost_sendrecv_counts(group->onehost ? group->onehost->sendrecv : NULL, rank);
}

static bool has_unreceived_sends(const struct weft_group *group)
{
    return group->onehost && onehost_has_unreceived_sends(group->onehost);
}

const struct coll_path_ops coll_path = {
    .is_possible = onehost_can_map_all,
    .open = onehost_open,
    .verify = onehost_verify_idle,
    .fence = fence,
    .cost_changed = cost_changed,
    .close = onehost_free,
    .control = control,
    .address = address,
    .vote = vote,
    .pool_init = pool_init,
    .pool_free = pool_free,
    .op_init = op_init,
    .op_free = op_free,
    .accepts = onehost_accepts,
    .prepare = prepare,
    .scratch_bytes = onehost_scratch_bytes,
    .starts_immediately = starts_immediately,
    .launch = launch,
    .launch_by_messages = launch_by_messages,
    .cancel = cancel,
    .has_peer_in_buffers = has_peer_in_buffers,
    .finish = finish,
    .waits_for = onehost_waits_for,
    .carries_sendrecv = onehost_sendrecv_is_possible,
    .sendrecv_reserve = sendrecv_reserve,
    .send_has_arrived = onehost_send_has_arrived,
    .recv_is_matched = recv_is_matched,
    .sendrecv_counts = sendrecv_counts,
    .has_unreceived_sends = has_unreceived_sends,
};
