/* coordinator_report.c - the figures that members send with their heartbeats. The coordinator keeps the
 * newest ones of each member for /metrics and the status, and does not act on them. */
#include "coordinator/coordinator_state.h"

/* Replaces the text. Without memory it is empty: the figures are kept. */
static void store_open(struct weft_coordinator *coordinator, struct coordinator_member *member,
                       const char *text)
{
    weft_free_bytes(coordinator->env, member->report_open);
    member->report_open = text[0] ? weft_alloc_text(coordinator->env, text) : NULL;
    member->report.open = member->report_open ? member->report_open : (char *)"";
}

void coordinator_report(struct weft_coordinator *coordinator, struct coordinator_member *member,
                        const Weft__Control__Report *report)
{
    member->report = *report;
    /* unknown fields end with the message */
    member->report.base.n_unknown_fields = 0;
    member->report.base.unknown_fields = NULL;
    member->reported_ns = weft_now_ns(coordinator->env);
    member->has_report = true;
    store_open(coordinator, member, report->open);
}

uint32_t weft_coordinator_member_count(const struct weft_coordinator *coordinator)
{
    return coordinator->member_count;
}

uint32_t weft_coordinator_reports(const struct weft_coordinator *coordinator,
                                  struct weft_member_report *reports_out, uint32_t capacity)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < coordinator->member_count && count < capacity; i++) {
        const struct coordinator_member *member = coordinator->members[i];
        if (!member->has_report || member->newcomer || member->state >= MEMBER_LEFT) continue;
        struct weft_member_report *report = &reports_out[count++];
        *report = (struct weft_member_report){
            .role = member->role,
            .index = member->index,
            .age_ns = weft_elapsed_ns(member->reported_ns, weft_now_ns(coordinator->env)),
            .figures = member->report,
        };
        report->figures.open = (char *)"";
    }
    return count;
}
