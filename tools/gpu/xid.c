/* xid.c - the table of Xid errors, sorted by number. An Xid of an application (a fault of its own kernel)
 * needs no action here: the job ends with the error of its CUDA call. */
#include "tools/gpu/xid.h"

#include <stdlib.h>

static const struct xid_entry table[] = {
    {13, XID_IGNORE, "an exception in a kernel of the application"},
    {31, XID_IGNORE, "a page fault of the application"},
    {43, XID_IGNORE, "a context that the driver stopped after a fault of the application"},
    {45, XID_IGNORE, "a context that was removed, as at the end of a killed process"},
    {48, XID_DRAIN_NOW, "a double-bit memory error"},
    {63, XID_DRAIN_LATER, "a memory row that waits for its remapping at the next reset"},
    {64, XID_DRAIN_NOW, "a memory row that could not be remapped"},
    {74, XID_DRAIN_NOW, "an NVLink error"},
    {79, XID_DRAIN_NOW, "a device that has fallen off the bus"},
    {92, XID_WATCH, "a high rate of corrected memory errors"},
    {94, XID_DRAIN_LATER, "a contained memory error"},
    {95, XID_DRAIN_NOW, "an uncontained memory error"},
    {119, XID_DRAIN_NOW, "a GPU system processor that does not answer"},
    {120, XID_DRAIN_NOW, "an error of the GPU system processor"},
};
#define ENTRY_COUNT (sizeof table / sizeof *table)

static int compare(const void *key, const void *entry)
{
    const uint32_t xid = *(const uint32_t *)key, other = ((const struct xid_entry *)entry)->xid;
    return xid < other ? -1 : xid > other;
}

const struct xid_entry *xid_find(uint32_t xid)
{
    return bsearch(&xid, table, ENTRY_COUNT, sizeof *table, compare);
}

const struct xid_entry *xid_at(size_t position)
{
    return position < ENTRY_COUNT ? &table[position] : NULL;
}

const char *xid_action_name(enum xid_action action)
{
    static const char *const names[] = {"ignore", "watch", "drain_later", "drain_now"};
    return names[action];
}
