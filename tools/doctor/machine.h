/* machine.h - checks of the files that describe this host. Every path is relative to `root`: "" is the
 * machine itself, anything else a tree made for a test. The checks change nothing, use no network and need no
 * privileges. */
#ifndef WEFT_TOOLS_DOCTOR_MACHINE_H
#define WEFT_TOOLS_DOCTOR_MACHINE_H

#include <stdint.h>

#include "tools/doctor/finding.h"

struct gpu_health;

enum { DOCTOR_TEXT_MAX = 4096 };

/* The beginning of a file without white space at its end. False: it cannot be read, and `out` is empty. */
bool machine_text(const char *root, const char *path, char *out, size_t capacity);
bool machine_number(const char *root, const char *path, int64_t *out);
bool machine_exists(const char *root, const char *path);
/* Names in a folder, sorted, without those that begin with a dot; at most `capacity`. 0: the folder is empty
 * or cannot be read. */
size_t machine_list(const char *root, const char *path, char names[][64], size_t capacity);
/* Whether a list such as "0-3,8" contains the number of a processor or node. */
bool machine_in_list(const char *list, uint32_t number);

/* Every check appends its findings. `need_rdma`: a machine without RDMA is broken instead of noted. */
void doctor_check_memory(struct doctor_report *report, const char *root, bool has_rdma);
void doctor_check_network(struct doctor_report *report, const char *root);
/* Returns whether an RDMA device has an active port. */
bool doctor_check_rdma(struct doctor_report *report, const char *root, bool need_rdma);
void doctor_check_accelerator(struct doctor_report *report, const char *root, bool has_rdma);
/* GPUs of a machine with the NVIDIA driver, or with WEFT_NVML. Blocks for at most 5 s. */
void doctor_check_gpus(struct doctor_report *report, const char *root);
void doctor_check_gpu_health(struct doctor_report *report, const struct gpu_health *health);
void doctor_check_clock(struct doctor_report *report, const char *root);
void doctor_check_machine(struct doctor_report *report, const char *root, bool need_rdma);

#endif
