/* topology_file.c - the text of a topology: `[kind name]` headings, `setting = value` lines, # and ;
 * comments.
 *
 * Everything keeps its line number, so that a mistake found while building is still reported at its line. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "transport/sim/topology.h"

enum { FILE_BYTES_MAX = 1 << 20 };

enum weft_status topology_bad(struct topology_text *text, int line, const char *format, ...)
{
    char sentence[360];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(sentence, sizeof sentence, format, arguments);
    va_end(arguments);
    return weft_error_set(text->error, WEFT_ERR_MALFORMED, "%.100s:%d: %s", text->file, line, sentence);
}

static bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r'; }

static char *trim(char *start, char *end)
{
    while (start < end && is_space(*start)) start++;
    while (end > start && is_space(end[-1])) end--;
    *end = 0;
    return start;
}

static bool grow(struct topology_text *text, void **array, uint32_t count, uint32_t *capacity, size_t bytes)
{
    if (count < *capacity) return true;
    uint32_t more = *capacity ? *capacity * 2 : 64;
    void *grown = weft_alloc_array(text->env, more, bytes);
    if (!grown) return false;
    if (count > 0) memcpy(grown, *array, count * bytes);
    weft_free_bytes(text->env, *array);
    *array = grown;
    *capacity = more;
    return true;
}

/* [kind name] */
static enum weft_status take_heading(struct topology_text *text, char *line, char *end, int number)
{
    if (end[-1] != ']') return topology_bad(text, number, "a heading ends with ]: write [switch leaf]");
    char *kind = trim(line + 1, end - 1), *name = kind + strcspn(kind, " \t");
    if (*name) {
        *name++ = 0;
        name = trim(name, name + strlen(name));
    }
    if (!grow(text, (void **)&text->sections, text->section_count, &text->section_capacity,
              sizeof *text->sections))
        return WEFT_ERR_NO_MEMORY;
    text->sections[text->section_count++] =
        (struct topology_section){kind, name, number, text->entry_count, 0};
    return WEFT_OK;
}

static enum weft_status take_setting(struct topology_text *text, char *line, char *end, int number)
{
    char *equals = memchr(line, '=', (size_t)(end - line));
    if (!equals)
        return topology_bad(text, number, "not a [kind name] heading and not a line setting = value");
    if (text->section_count == 0)
        return topology_bad(text, number, "a setting stands under a heading: write [topology] above it");
    const char *value = trim(equals + 1, end), *name = trim(line, equals);
    if (!*name || !*value)
        return topology_bad(text, number, "a setting has a name and a value: write rate = 100Gbit");
    struct topology_section *section = &text->sections[text->section_count - 1];
    for (uint32_t i = 0; i < section->count; i++) {
        if (strcmp(text->entries[section->first + i].name, name) != 0) continue;
        return topology_bad(text, number, "%.40s stands twice in this section; keep one line", name);
    }
    if (!grow(text, (void **)&text->entries, text->entry_count, &text->entry_capacity, sizeof *text->entries))
        return WEFT_ERR_NO_MEMORY;
    text->entries[text->entry_count++] = (struct topology_entry){name, value, number, false};
    section->count++;
    return WEFT_OK;
}

static enum weft_status take_lines(struct topology_text *text, size_t bytes)
{
    char *at = text->text, *text_end = at + bytes;
    for (int number = 1; at < text_end; number++) {
        char *end = memchr(at, '\n', (size_t)(text_end - at)), *next = end ? end + 1 : text_end;
        if (!end) end = text_end;
        char *comment = at;
        while (comment < end && *comment != '#' && *comment != ';') comment++;
        char *line = trim(at, comment);
        char *line_end = line + strlen(line);
        if (line_end - line > 200) return topology_bad(text, number, "a line has at most 200 characters");
        enum weft_status status = WEFT_OK;
        if (*line == '[') status = take_heading(text, line, line_end, number);
        else if (*line) status = take_setting(text, line, line_end, number);
        if (status < 0) return status;
        at = next;
    }
    if (text->section_count == 0)
        return topology_bad(text, 1, "there is nothing in it: a topology has at least one [host NAME]");
    return WEFT_OK;
}

enum weft_status topology_text_open(struct topology_text *text, const char *content, size_t bytes)
{
    if (bytes > FILE_BYTES_MAX)
        return topology_bad(text, 1, "a topology has at most %d bytes", FILE_BYTES_MAX);
    text->text = weft_alloc_bytes(text->env, bytes + 1);
    if (!text->text) return WEFT_ERR_NO_MEMORY;
    memcpy(text->text, content, bytes);
    for (size_t i = 0; i < bytes; i++) {
        if (text->text[i] == 0) return topology_bad(text, 1, "this is no text file");
    }
    text->text[bytes] = 0;
    return take_lines(text, bytes);
}

void topology_text_free(struct topology_text *text)
{
    weft_free_bytes(text->env, text->sections);
    weft_free_bytes(text->env, text->entries);
    weft_free_bytes(text->env, text->text);
}

const char *topology_setting(struct topology_text *text, const struct topology_section *section,
                             const char *name, int *line_out)
{
    for (uint32_t i = 0; i < section->count; i++) {
        struct topology_entry *entry = &text->entries[section->first + i];
        if (strcmp(entry->name, name) != 0) continue;
        entry->used = true;
        if (line_out) *line_out = entry->line;
        return entry->value;
    }
    return NULL;
}

enum weft_status topology_all_used(struct topology_text *text, const struct topology_section *section,
                                   const char *known)
{
    for (uint32_t i = 0; i < section->count; i++) {
        const struct topology_entry *entry = &text->entries[section->first + i];
        if (!entry->used)
            return topology_bad(text, entry->line, "[%s] has no setting %.40s; it has %s", section->kind,
                                entry->name, known);
    }
    return WEFT_OK;
}

/* Reads the whole file, up to the limit plus one byte. */
static enum weft_status read_file(struct weft_env *env, const char *path, char **content_out,
                                  size_t *bytes_out, struct weft_error *error)
{
    FILE *file = fopen(path, "re");
    if (!file) {
        return weft_error_set(error, errno == ENOENT ? WEFT_ERR_NOT_FOUND : WEFT_ERR_IO,
                              "topology file %s cannot be opened: %s", path, strerror(errno));
    }
    char *content = weft_alloc_bytes(env, FILE_BYTES_MAX + 1);
    errno = 0;
    *bytes_out = content ? fread(content, 1, FILE_BYTES_MAX + 1, file) : 0;
    int reason = ferror(file) ? errno : 0;
    fclose(file);
    if (!content) return weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory to read %s", path);
    *content_out = content;
    if (!reason) return WEFT_OK;
    weft_free_bytes(env, content);
    return weft_error_set(error, WEFT_ERR_IO, "topology file %s cannot be read: %s", path, strerror(reason));
}

enum weft_status weft_topology_load(struct weft_env *env, const char *path,
                                    struct weft_topology **topology_out, struct weft_error *error)
{
    char *content = NULL;
    size_t bytes = 0;
    WEFT_TRY(read_file(env, path, &content, &bytes, error));
    enum weft_status status = weft_topology_parse(env, path, content, bytes, topology_out, error);
    weft_free_bytes(env, content);
    return status;
}
