/* notify.h - reports the findings about this host's GPUs to the coordinator of a job. */
#ifndef WEFT_TOOLS_DOCTOR_NOTIFY_H
#define WEFT_TOOLS_DOCTOR_NOTIFY_H

#include "tools/doctor/finding.h"

/* Sends the findings that need action; none replace those that this host has sent before. 0: the coordinator
 * has them; otherwise a sentence is on stderr. */
int doctor_notify(const struct doctor_report *report, const char *coordinator, const char *secret_file);

#endif
