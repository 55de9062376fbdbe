/* config_example.c - the option table as an INI file: help and allowed values of each option as comments,
 * then the option with its default, also as a comment. Lines stay below the 200 bytes that libinih reads. */
#include <string.h>

#include "base/config/config.h"
#include "base/config/config_names.h"
#include "base/config/config_value.h"

enum { COLUMNS = 100, PARAGRAPH_BYTES = 1024, VARIABLE_BYTES = 64 };

/* Prints the text as comment lines, broken between words. */
static void print_comment(const char *text, FILE *out)
{
    int at = fprintf(out, ";");
    while (*text) {
        const int length = (int)strcspn(text, " ");
        if (at > 1 && at + 1 + length > COLUMNS) at = fprintf(out, "\n;") - 1;
        at += fprintf(out, " %.*s", length, text);
        text += length;
        text += strspn(text, " ");
    }
    fprintf(out, "\n");
}

static void print_option(const struct weft_option *option, FILE *out)
{
    char allowed[PARAGRAPH_BYTES / 2], variable[VARIABLE_BYTES], text[PARAGRAPH_BYTES];
    config_value_describe(option, allowed, sizeof allowed);
    config_variable_name(option->name, variable, sizeof variable);
    snprintf(text, sizeof text, "%s Takes %s. Variable: %s.", option->help, allowed, variable);
    print_comment(text, out);
    fprintf(out, ";%s =%s%s\n", strchr(option->name, '.') + 1, option->default_text[0] ? " " : "",
            option->default_text);
}

void weft_config_print_example(FILE *out)
{
    const char *section = "";
    print_comment("weft.ini - every option of weft with its default. To set one, remove the semicolon before "
                  "its name. Written by weftd --example-config; see weft.ini(5).",
                  out);
    for (const struct weft_option *option = weft_option_table; option->name; option++) {
        const size_t bytes = strcspn(option->name, ".") + 1;
        if (strncmp(section, option->name, bytes) != 0)
            fprintf(out, "\n[%.*s]", (int)bytes - 1, option->name);
        section = option->name;
        fprintf(out, "\n");
        print_option(option, out);
    }
}
