/* plan_spec.c - parses forced plans: "auto", "ring", "all_reduce=halving,broadcast=chain". A single plan
 * applies to every operation that supports it; the other operations choose. A list changes the operations
 * that it names. */
#include "collective/plan/algorithm.h"

#include <string.h>

static bool plan_named(const char *name, size_t bytes, enum weft_plan_id *plan_out)
{
    char copy[32];
    if (bytes == 0 || bytes >= sizeof copy) return false;
    memcpy(copy, name, bytes);
    copy[bytes] = 0;
    *plan_out = weft_plan_parse(copy);
    return *plan_out != WEFT_PLAN_AUTO || strcmp(copy, "auto") == 0;
}

static enum weft_status set_all(const char *text, enum weft_plan_id *plans, struct weft_error *error)
{
    enum weft_plan_id plan = WEFT_PLAN_AUTO;
    bool known = plan_named(text, strlen(text), &plan), has_any = plan == WEFT_PLAN_AUTO;
    for (int kind = 1; kind < WEFT_COLL_KIND_COUNT; kind++)
        has_any |= weft_plan_supports(plan, (enum weft_coll_kind)kind);
    if (!known || !has_any)
        return weft_error_set(
            error, WEFT_ERR_INVALID,
            "plan '%.60s' is unknown; there are auto, direct, ring, doubling, halving, "
            "double_tree, bruck, pat, chain, binomial and hierarchy, for one operation as all_reduce=ring",
            text);
    for (int kind = 0; kind < WEFT_COLL_KIND_COUNT; kind++)
        plans[kind] = weft_plan_supports(plan, (enum weft_coll_kind)kind) ? plan : WEFT_PLAN_AUTO;
    return WEFT_OK;
}

enum weft_status weft_plans_parse(const char *text, enum weft_plan_id plans[WEFT_COLL_KIND_COUNT],
                                  struct weft_error *error)
{
    enum weft_plan_id forced_plan[WEFT_COLL_KIND_COUNT];
    if (!strchr(text, '=')) return set_all(text, plans, error);
    memcpy(forced_plan, plans, sizeof forced_plan);
    struct weft_key_value item;
    while (weft_key_value_next(&text, "", &item)) {
        enum weft_coll_kind kind =
            item.value ? weft_coll_kind_parse(item.name, item.name_bytes) : (enum weft_coll_kind)0;
        enum weft_plan_id plan = WEFT_PLAN_AUTO;
        if (!kind || !plan_named(item.value, item.value_bytes, &plan))
            return weft_error_set(error, WEFT_ERR_INVALID, "'%.*s' is not OPERATION=PLAN, as all_reduce=ring",
                                  (int)(item.item_bytes < 60 ? item.item_bytes : 60), item.item);
        if (plan != WEFT_PLAN_AUTO && !weft_plan_supports(plan, kind))
            return weft_error_set(error, WEFT_ERR_UNSUPPORTED, "plan %s has no %s", weft_plan_name(plan),
                                  weft_coll_kind_name(kind));
        forced_plan[kind] = plan;
    }
    memcpy(plans, forced_plan, sizeof forced_plan);
    return WEFT_OK;
}
