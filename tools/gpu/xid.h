/* xid.h - the action that an Xid error of the NVIDIA driver requires. The table is data: xid.c. */
#ifndef WEFT_TOOLS_GPU_XID_H
#define WEFT_TOOLS_GPU_XID_H

#include <stddef.h>
#include <stdint.h>

enum xid_action {
    XID_IGNORE = 0,  /* an error of the application, or no error of the device */
    XID_WATCH,       /* the rate matters */
    XID_DRAIN_LATER, /* finish the step, then move the work to another device */
    XID_DRAIN_NOW,   /* results may be wrong, or the device is lost */
};

struct xid_entry {
    uint32_t xid;
    enum xid_action action;
    const char *meaning; /* a noun phrase */
};

/* The entry of an Xid; NULL: not in the table, so only its text in the kernel log has the meaning. */
const struct xid_entry *xid_find(uint32_t xid);
/* "ignore", "watch", "drain_later", "drain_now": label of metrics. */
const char *xid_action_name(enum xid_action action);
/* Table entry of a position; NULL: behind the last one. */
const struct xid_entry *xid_at(size_t position);

#endif
