/* news.c - brings news between ranks (control.c) to the group they belong to: one handler and one watcher per endpoint,
 * whatever the number of its groups and their ranks.
 *
 *     arrival on WEFT_CHANNEL_NEWS ──► group of its tag ──► control_news
 *                                 └──► nobody has made that group yet: it waits here, up to NEWS_HELD_MAX
 *     a peer is lost ──► every group ──► control_lost
 *
 * Groups that have ended refuse their tags at the transport, so what comes here is for a live group or for one to come.
 * (A posted receive for each pair of ranks would do the same, with a kilobyte for each: 4,096 ranks in the simulator
 * would hold 15 GB, and a rank of a large job several megabytes for every group.) */
#include "collective/internal.h"

#define NEWS_HELD_MAX 1024u

struct news {
    struct weft_env *env;
    struct weft_transport *transport;
    struct weft_list groups; /* struct weft_group.news_link */
    struct weft_list held;   /* struct weft_arrival.link, oldest first */
    uint32_t held_count;
};

static struct weft_group *group_of(struct news *news, uint64_t tag)
{
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &news->groups) {
        struct weft_group *group = weft_container_of(node, struct weft_group, news_link);
        if (group_news_tag(group) == tag) return group;
    }
    return NULL;
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

/* A group that hears of it may end, and its owner free it and make another: start over after each. */
static void peer_lost(void *context, uint32_t peer_id, enum weft_status status)
{
    struct news *news = context;
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &news->groups) control_lost(weft_container_of(node, struct weft_group, news_link), peer_id, status);
}

enum weft_status news_join(struct weft_group *group)
{
    struct news *news = weft_transport_handler_context(group->transport, WEFT_CHANNEL_NEWS);
    if (!news) {
        news = weft_alloc_zero(group->env, sizeof *news);
        if (!news) return WEFT_ERR_NO_MEMORY;
        news->env = group->env;
        news->transport = group->transport;
        weft_list_init(&news->groups);
        weft_list_init(&news->held);
        weft_transport_handler(group->transport, WEFT_CHANNEL_NEWS, arrived, news);
        weft_transport_watch(group->transport, peer_lost, news);
    }
    group->news = news;
    weft_list_append(&news->groups, &group->news_link);
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
    if (!weft_list_empty(&news->groups)) return;
    weft_transport_handler(news->transport, WEFT_CHANNEL_NEWS, NULL, NULL);
    weft_transport_watch(news->transport, NULL, NULL);
    while (!weft_list_empty(&news->held)) {
        struct weft_arrival *arrival = weft_list_first(&news->held, struct weft_arrival, link);
        weft_list_remove(&arrival->link);
        weft_transport_discard(news->transport, arrival);
    }
    weft_free_bytes(news->env, news);
}
