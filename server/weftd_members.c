/* weftd_members.c - weftd in a job that goes on without lost workers: the coordinator's word reaches the engines. Net thread, but for
 * what a letter does on its engine's.
 *
 *     MemberLost(epoch) -> every engine gives the lost worker up and parts   (shard_members.c)
 *     Joined(epoch)     -> every engine parts; the worker that rests stays connected, and may be one of a later epoch's members
 *     Shrunk(epoch)     -> every engine gets the members, by their new ranks
 *
 * Letters to one engine are read in their order. One that no engine has read when the process ends is freed with the others. */
#include <stdio.h>
#include <string.h>

#include "server/weftd.h"

struct members_letter {
    struct weft_mail mail;
    struct weft_list link; /* weftd->letters; the net thread's */
    struct weftd_engine *engine;
    uint32_t epoch, lost_endpoint, workers;
    bool lost;
    char text[400];
    struct weft_error error;
    uint64_t *incarnations; /* (workers,) behind the letter; endpoints behind them */
    uint32_t *endpoints;
};

static struct members_letter *letter_create(struct weftd *weftd, struct weftd_engine *engine, uint32_t epoch, uint32_t workers)
{
    struct members_letter *letter = weft_alloc_zero(weftd->env, sizeof *letter + workers * (sizeof *letter->incarnations + sizeof *letter->endpoints));
    if (!letter) {
        (void)weft_member_abort(weftd->member, WEFT_ERR_NO_MEMORY, "a shard has no memory to follow the membership");
        weftd_fail(weftd, WEFT_ERR_NO_MEMORY, "no memory to follow the membership of epoch %u", epoch);
        return NULL;
    }
    letter->engine = engine;
    letter->epoch = epoch;
    letter->workers = workers;
    letter->incarnations = (uint64_t *)(void *)(letter + 1);
    letter->endpoints = (uint32_t *)(void *)(letter->incarnations + workers);
    weft_list_append(&weftd->letters, &letter->link);
    return letter;
}

static void post(struct members_letter *letter, void (*fn)(struct weft_mail *mail))
{
    letter->mail.fn = fn;
    weft_loop_post(letter->engine->loop, &letter->mail);
}

static void on_answered(struct weft_mail *mail)
{
    struct members_letter *letter = weft_container_of(mail, struct members_letter, mail);
    struct weftd *weftd = letter->engine->weftd;
    if (letter->error.status != WEFT_OK && !weftd->failing) {
        (void)weft_member_abort(weftd->member, (enum weft_status)letter->error.status, letter->error.text);
        weftd_fail(weftd, (enum weft_status)letter->error.status, "%s", letter->error.text);
    }
    weft_list_remove(&letter->link);
    weft_free_bytes(weftd->env, letter);
}

void weftd_members_free(struct weftd *weftd)
{
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &weftd->letters) weft_free_bytes(weftd->env, weft_container_of(node, struct members_letter, link));
}

/* ---- on the engine's thread ---- */

static void answer(struct members_letter *letter)
{
    letter->mail.fn = on_answered;
    weft_net_post(letter->engine->weftd->net, &letter->mail);
}

static void on_part(struct weft_mail *mail)
{
    struct members_letter *letter = weft_container_of(mail, struct members_letter, mail);
    struct weftd_engine *engine = letter->engine;
    /* Not every transport sees a death, and what is under way to or from the dead has to end. */
    if (letter->lost && engine->transport && weft_transport_peer(engine->transport, letter->lost_endpoint))
        weft_transport_fail_peer(engine->transport, letter->lost_endpoint, WEFT_ERR_PEER_LOST, letter->text);
    if (engine->shard) weft_shard_engine_part(engine->shard, letter->epoch);
    answer(letter);
}

static void on_follow(struct weft_mail *mail)
{
    struct members_letter *letter = weft_container_of(mail, struct members_letter, mail);
    if (letter->engine->shard)
        (void)weft_shard_engine_follow(letter->engine->shard, letter->epoch, letter->workers, letter->endpoints, letter->incarnations, &letter->error);
    answer(letter);
}

/* ---- what the coordinator says ---- */

static const Weft__Control__Member *worker_of(const struct weftd *weftd, uint32_t number)
{
    for (size_t i = 0; weftd->roster && i < weftd->roster->roster->n_members; i++) {
        const Weft__Control__Member *member = weftd->roster->roster->members[i];
        if (member->member == number && member->role == WEFT__CONTROL__ROLE__ROLE_WORKER) return member;
    }
    return NULL;
}

/* false: it is the end of the job. */
bool weftd_members_lost(struct weftd *weftd, const Weft__Control__MemberLost *lost)
{
    const Weft__Control__Member *member = worker_of(weftd, lost->member);
    if (lost->epoch == 0 || weftd->welcome.workers_min == 0 || !weftd->running || !member) return false;
    weft_log(weftd->env, WEFT_LOG_WARN, "weftd", "%s; the job goes on", lost->text);
    for (uint32_t i = 0; i < weftd->options.engines; i++) {
        struct members_letter *letter = letter_create(weftd, &weftd->engines[i], lost->epoch, 0);
        if (!letter) return true;
        letter->lost = true;
        letter->lost_endpoint = member->endpoint_first;
        snprintf(letter->text, sizeof letter->text, "%s", lost->text);
        post(letter, on_part);
    }
    return true;
}

void weftd_members_joined(struct weftd *weftd, const Weft__Control__Joined *joined)
{
    if (!weftd->running || weftd->welcome.workers_min == 0) {
        weftd_fail(weftd, WEFT_ERR_MALFORMED, "the coordinator says that a worker rests, in a job that waits for all of them");
        return;
    }
    for (uint32_t i = 0; i < weftd->options.engines; i++) {
        struct members_letter *letter = letter_create(weftd, &weftd->engines[i], joined->epoch, 0);
        if (!letter) return;
        post(letter, on_part);
    }
}

void weftd_members_shrunk(struct weftd *weftd, const Weft__Control__Shrunk *shrunk)
{
    bool known = weftd->running && weftd->welcome.workers_min > 0 && shrunk->n_members > 0 && shrunk->n_members <= weftd->welcome.workers;
    for (size_t rank = 0; known && rank < shrunk->n_members; rank++) known = worker_of(weftd, shrunk->members[rank]) != NULL;
    if (!known) {
        weftd_fail(weftd, WEFT_ERR_MALFORMED, "the coordinator's members of epoch %u are not those that this shard knows", shrunk->epoch);
        return;
    }
    for (uint32_t i = 0; i < weftd->options.engines; i++) {
        struct members_letter *letter = letter_create(weftd, &weftd->engines[i], shrunk->epoch, (uint32_t)shrunk->n_members);
        if (!letter) return;
        for (uint32_t rank = 0; rank < letter->workers; rank++) {
            const Weft__Control__Member *member = worker_of(weftd, shrunk->members[rank]);
            letter->endpoints[rank] = member->endpoint_first;
            letter->incarnations[rank] = member->incarnation;
        }
        post(letter, on_follow);
    }
}
