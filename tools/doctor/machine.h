/* machine.h - what this host's files say about its transports. Every path stands below `root`: "" is the
 * machine itself, anything else a tree made for a test. Nothing is changed, nothing is asked of the network;
 * works as an ordinary user. */
#ifndef WEFT_TOOLS_DOCTOR_MACHINE_H
#define WEFT_TOOLS_DOCTOR_MACHINE_H

#include <stdint.h>

#include "tools/doctor/finding.h"

enum { DOCTOR_TEXT_MAX = 4096 };

/* The beginning of a file without the white space at its end. False: it cannot be read (out is then
 * empty). */
bool machine_text(const char *root, const char *path, char *out, size_t capacity);
bool machine_number(const char *root, const char *path, int64_t *out);
bool machine_exists(const char *root, const char *path);
/* Names in a folder, sorted, without those that begin with a dot; at most `room`. 0 when it cannot be
 * read. */
size_t machine_list(const char *root, const char *path, char names[][64], size_t capacity);
/* Is `cpu` or node number in a list such as "0-3,8"? */
bool machine_in_list(const char *list, uint32_t number);

/* Every check appends its findings. `need_rdma`: a machine without it is broken, not merely noted. */
void doctor_check_memory(struct doctor_report *report, const char *root, bool has_rdma);
void doctor_check_network(struct doctor_report *report, const char *root);
/* Answers whether there is an RDMA device with an active port. */
bool doctor_check_rdma(struct doctor_report *report, const char *root, bool need_rdma);
void doctor_check_accelerator(struct doctor_report *report, const char *root, bool has_rdma);
void doctor_check_clock(struct doctor_report *report, const char *root);
void doctor_check_machine(struct doctor_report *report, const char *root, bool need_rdma);

#endif
