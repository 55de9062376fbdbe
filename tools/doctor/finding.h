/* finding.h - the findings of `weft doctor`: one line each, with what to do about it. */
#ifndef WEFT_TOOLS_DOCTOR_FINDING_H
#define WEFT_TOOLS_DOCTOR_FINDING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

enum doctor_level {
    DOCTOR_OK = 0,
    DOCTOR_NOTE = 1,   /* information; no action unless the feature is wanted */
    DOCTOR_WARN = 2,   /* works, but slower or less than this machine could */
    DOCTOR_BROKEN = 3, /* does not work, and was asked for or is needed by every job */
};

struct doctor_finding {
    enum doctor_level level;
    char id[32];      /* pinned: "memlock", "rdma-port", ...; docs/doctor.md lists them */
    char subject[64]; /* a device, a file or a host */
    char text[600];   /* what was found */
    char advice[240]; /* what to do; empty for DOCTOR_OK */
};

struct doctor_report {
    struct doctor_finding *findings; /* owned; (count,) */
    size_t count, capacity;
    bool is_truncated; /* out of memory: some findings are missing */
};

void doctor_report_free(struct doctor_report *report);
/* Appends a finding. `advice` may be NULL only for DOCTOR_OK. */
void doctor_add_finding(struct doctor_report *report, enum doctor_level level, const char *id,
                        const char *subject, const char *advice, const char *format, ...)
    __attribute__((format(printf, 6, 7)));
const char *doctor_level_name(enum doctor_level level); /* "ok", "note", "warn", "BROKEN" */
enum doctor_level doctor_worst_level(const struct doctor_report *report);
/* The newest finding with this id; NULL: none. */
const struct doctor_finding *doctor_newest_finding(const struct doctor_report *report, const char *id);
void doctor_print(const struct doctor_report *report, FILE *out, bool all);

#endif
