/* finding.c - see finding.h. */
#include "tools/doctor/finding.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

void doctor_report_free(struct doctor_report *report)
{
    free(report->findings);
    *report = (struct doctor_report){0};
}

/* Names and texts of other machines may contain any byte: a finding stays on one line. */
static void replace_control_characters(char *text)
{
    for (; *text; text++) {
        if ((unsigned char)*text < ' ' || *text == 127) *text = ' ';
    }
}

void doctor_add_finding(struct doctor_report *report, enum doctor_level level, const char *id,
                        const char *subject, const char *advice, const char *format, ...)
{
    va_list args;
    if (report->count == report->capacity) {
        size_t capacity = report->capacity ? 2 * report->capacity : 32;
        struct doctor_finding *more = realloc(report->findings, capacity * sizeof *more);
        if (!more) {
            report->is_truncated = true;
            return;
        }
        report->findings = more;
        report->capacity = capacity;
    }
    struct doctor_finding *finding = &report->findings[report->count++];
    *finding = (struct doctor_finding){.level = level};
    snprintf(finding->id, sizeof finding->id, "%s", id);
    snprintf(finding->subject, sizeof finding->subject, "%s", subject);
    if (advice) snprintf(finding->advice, sizeof finding->advice, "%s", advice);
    va_start(args, format);
    vsnprintf(finding->text, sizeof finding->text, format, args);
    va_end(args);
    replace_control_characters(finding->subject);
    replace_control_characters(finding->text);
    replace_control_characters(finding->advice);
}

const char *doctor_level_name(enum doctor_level level)
{
    return level == DOCTOR_OK     ? "ok"
           : level == DOCTOR_NOTE ? "note"
           : level == DOCTOR_WARN ? "warn"
                                  : "BROKEN";
}

enum doctor_level doctor_worst_level(const struct doctor_report *report)
{
    enum doctor_level worst = DOCTOR_OK;
    for (size_t i = 0; i < report->count; i++) {
        if (report->findings[i].level > worst) worst = report->findings[i].level;
    }
    return worst;
}

const struct doctor_finding *doctor_newest_finding(const struct doctor_report *report, const char *id)
{
    for (size_t i = report->count; i > 0; i--) {
        if (strcmp(report->findings[i - 1].id, id) == 0) return &report->findings[i - 1];
    }
    return NULL;
}

void doctor_print(const struct doctor_report *report, FILE *out, bool all)
{
    size_t width = 0;
    for (size_t i = 0; i < report->count; i++) {
        size_t length = strlen(report->findings[i].subject);
        if (length > width && length <= 28) width = length;
    }
    for (size_t i = 0; i < report->count; i++) {
        const struct doctor_finding *finding = &report->findings[i];
        if (finding->level == DOCTOR_OK && !all) continue;
        fprintf(out, "%-6s  %-20s  %-*s  %s\n", doctor_level_name(finding->level), finding->id, (int)width,
                finding->subject, finding->text);
        if (finding->advice[0])
            fprintf(out, "%-6s  %-20s  %-*s  -> %s\n", "", "", (int)width, "", finding->advice);
    }
    if (report->is_truncated) fprintf(out, "(out of memory: some findings are missing)\n");
}
