/* news.c - brings news between ranks (control.c) to the group they belong to: one handler and one watcher per endpoint,
 * whatever the number of its groups and their ranks.
 *
 *     arrival on WEFT_CHANNEL_NEWS ──► group of its tag ──► control_news
 *                                 └──► nobody has made that group yet: it waits here, up to NEWS_HELD_MAX
 *     a peer is lost ──► every group ──► control_lost
 *
 * Groups that have ended refuse their tags at the transport, so what comes here is for a live group or for one to come. Where groups are made
 * in the order of their ids (weft_group_options.ids_rise) which of both an unknown one is follows from its id: nothing is kept of those that
 * have gone, however many. A tag has eight bits of the epoch, which say it as long as this rank is within a hundred of the others: one
 * that takes no part in their groups is told which they are at (weft_groups_follow).
 * (A posted receive for each pair of ranks would do the same, with a kilobyte for each: 4,096 ranks in the simulator
 * would hold 15 GB, and a rank of a large job several megabytes for every group.) */
#include "collective/internal.h"

enum { NEWS_HELD_MAX = 1024, BUCKETS = 64 };
#define CHANNEL_MASK ((uint64_t)0xff << 56)

struct news {
    struct weft_env *env;
    struct weft_transport *transport;
    struct weft_list buckets[BUCKETS]; /* struct weft_group.news_link, by id */
    uint32_t group_count;
    bool rises;              /* some group said that ids rise: */
    uint32_t epoch, risen;   /* those of that epoch up to that id, and of epochs before, are not made any more */
    struct weft_list held;   /* struct weft_arrival.link, oldest first */
    uint32_t held_count;
};

/* By how much it is newer than the last one here. */
static int8_t newer_by(const struct news *news, uint64_t tag) { return (int8_t)(uint8_t)((tag >> 24 & 0xff) - news->epoch); }

static bool has_epoch(const struct news *news, const struct weft_group *group, uint64_t tag)
{
    return news->rises ? group->epoch == news->epoch + (uint32_t)newer_by(news, tag) : (uint8_t)group->epoch == (uint8_t)(tag >> 24);
}

static struct weft_group *group_of(const struct news *news, uint64_t tag)
{
    const struct weft_list *bucket = &news->buckets[(tag >> 32 & GROUP_ID_MAX) % BUCKETS];
    for (const struct weft_list *node = bucket->next; node != bucket; node = node->next) {
        struct weft_group *group = weft_container_of(node, struct weft_group, news_link);
        if (group->group_id == (tag >> 32 & GROUP_ID_MAX) && has_epoch(news, group, tag)) return group;
    }
    return NULL;
}

/* Of tags of both channels: nobody will receive under it any more. */
static bool has_ended(void *context, uint64_t tag)
{
    const struct news *news = context;
    const struct weft_group *group = group_of(news, tag);
    if (group) return group->fail_status < 0;
    if (!news->rises) return false;
    const int8_t newer = newer_by(news, tag);
    return newer < 0 || (newer == 0 && (tag >> 32 & GROUP_ID_MAX) <= news->risen);
}

static void arrived(void *context, struct weft_arrival *arrival)
{
    struct news *news = context;
    struct weft_group *group = group_of(news, arrival->tag);
    if (group) {
        control_news(group, arrival);
    } else if (news->held_count < NEWS_HELD_MAX) {
        weft_list_append(&news->held, &arrival->link);
        news->held_count++;
    } else {
        weft_transport_discard(news->transport, arrival);
    }
}

/* A group that hears of it may end, but its operations are over, and its owner told, only with its own timer: none is freed here. */
static void peer_lost(void *context, uint32_t peer_id, enum weft_status status)
{
    struct news *news = context;
    struct weft_list *node, *spare;
    for (unsigned i = 0; i < BUCKETS; i++)
        weft_list_foreach(node, spare, &news->buckets[i]) control_lost(weft_container_of(node, struct weft_group, news_link), peer_id, status);
}

void news_each_group(const struct weft_group *group, void (*fn)(void *context, const struct weft_group *group), void *context)
{
    for (unsigned i = 0; group->news && i < BUCKETS; i++)
        for (const struct weft_list *node = group->news->buckets[i].next; node != &group->news->buckets[i]; node = node->next)
            fn(context, weft_container_of(node, struct weft_group, news_link));
}

static void listen(struct news *news, bool on)
{
    struct weft_transport *transport = news->transport;
    weft_transport_handler(transport, WEFT_CHANNEL_NEWS, on ? arrived : NULL, on ? news : NULL);
    weft_transport_watch(transport, on ? peer_lost : NULL, on ? news : NULL);
    weft_transport_refuses(transport, WEFT_CHANNEL_NEWS, on ? has_ended : NULL, on ? news : NULL);
    weft_transport_refuses(transport, WEFT_CHANNEL_COLLECTIVE, on ? has_ended : NULL, on ? news : NULL);
}

/* While there is no group of those whose ids rise any more, and before there is one. */
static void refuse_all(struct weft_transport *transport, bool on)
{
    (void)weft_transport_refuse(transport, WEFT_TAG(WEFT_CHANNEL_COLLECTIVE, 0), CHANNEL_MASK, on);
    (void)weft_transport_refuse(transport, WEFT_TAG(WEFT_CHANNEL_NEWS, 0), CHANNEL_MASK, on);
}

static struct news *news_make(struct weft_group *group)
{
    struct news *news = weft_alloc_zero(group->env, sizeof *news);
    if (!news) return NULL;
    news->env = group->env;
    news->transport = group->transport;
    for (unsigned i = 0; i < BUCKETS; i++) weft_list_init(&news->buckets[i]);
    weft_list_init(&news->held);
    refuse_all(news->transport, false);
    listen(news, true);
    return news;
}

static void follow(struct news *news, uint32_t epoch)
{
    if (!news->rises || epoch > news->epoch) news->epoch = epoch, news->risen = 0;
    news->rises = true;
}

void weft_groups_follow(struct weft_transport *transport, uint32_t epoch)
{
    struct news *news = weft_transport_handler_context(transport, WEFT_CHANNEL_NEWS);
    if (news) follow(news, epoch);
}

enum weft_status news_join(struct weft_group *group)
{
    struct news *news = weft_transport_handler_context(group->transport, WEFT_CHANNEL_NEWS);
    if (!news && !(news = news_make(group))) return WEFT_ERR_NO_MEMORY;
    group->news = news;
    news->group_count++;
    weft_list_append(&news->buckets[group->group_id % BUCKETS], &group->news_link);
    if (!group->ids_rise) return WEFT_OK;
    follow(news, group->epoch);
    if (group->epoch == news->epoch && group->group_id > news->risen) news->risen = group->group_id;
    return WEFT_OK;
}

/* What came before the group was made. */
void news_catch_up(struct weft_group *group)
{
    struct news *news = group->news;
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &news->held) {
        struct weft_arrival *arrival = weft_container_of(node, struct weft_arrival, link);
        if (arrival->tag != group_news_tag(group)) continue;
        weft_list_remove(node);
        news->held_count--;
        control_news(group, arrival);
    }
}

void news_leave(struct weft_group *group)
{
    struct news *news = group->news;
    if (!news) return;
    group->news = NULL;
    weft_list_remove(&group->news_link);
    if (--news->group_count > 0) return;
    listen(news, false);
    while (!weft_list_empty(&news->held)) {
        struct weft_arrival *arrival = weft_list_first(&news->held, struct weft_arrival, link);
        weft_list_remove(&arrival->link);
        weft_transport_discard(news->transport, arrival);
    }
    if (news->rises) refuse_all(news->transport, true);
    weft_free_bytes(news->env, news);
}
