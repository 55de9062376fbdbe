/* weftd_letter.c - letters of the net thread to an engine that are answered when it has read them; an error in the answer ends the job.
 *
 *     net: weftd_letter_post ──► engine: fn, weftd_letter_answer ──► net: over, or the job is aborted; freed
 *
 * Letters to one engine are read in their order. One that no engine has read when the process ends is freed with the others. */
#include "server/weftd.h"

static struct weftd_letter *letter_of(struct weft_mail *mail) { return weft_container_of(mail, struct weftd_letter, mail); }

void weftd_letter_post(struct weftd_letter *letter, struct weftd_engine *engine, void (*fn)(struct weft_mail *mail))
{
    letter->engine = engine;
    letter->mail.fn = fn;
    weft_list_append(&engine->weftd->letters, &letter->link);
    weft_loop_post(engine->loop, &letter->mail);
}

static void on_answered(struct weft_mail *mail)
{
    struct weftd_letter *letter = letter_of(mail);
    struct weftd *weftd = letter->engine->weftd;
    if (letter->error.status != WEFT_OK && !weftd->failing) {
        (void)weft_member_abort(weftd->member, (enum weft_status)letter->error.status, letter->error.text);
        weftd_fail(weftd, (enum weft_status)letter->error.status, "%s", letter->error.text);
    }
    weft_list_remove(&letter->link);
    weft_free_bytes(weftd->env, letter);
}

void weftd_letter_answer(struct weftd_letter *letter)
{
    letter->mail.fn = on_answered;
    weft_net_post(letter->engine->weftd->net, &letter->mail);
}

void weftd_letters_free(struct weftd *weftd)
{
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &weftd->letters) weft_free_bytes(weftd->env, weft_container_of(node, struct weftd_letter, link));
}
