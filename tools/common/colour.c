/* SPDX-License-Identifier: BSD-3-Clause */
/* Colours of standard output. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/common/shared.h"

static enum { BY_TERMINAL, ALWAYS, NEVER } when;

bool colour_set(const char *word)
{
    static const char *const words[] = {
        [BY_TERMINAL] = "auto", [ALWAYS] = "always", [NEVER] = "never"};

    for (unsigned i = BY_TERMINAL; i <= NEVER; i++)
        if (!strcmp(word, words[i])) {
            when = i;
            return true;
        }
    return false;
}

/* Source of NO_COLOR: https://no-color.org */
static bool terminal_has_colours(void)
{
    const char *no_colour = getenv("NO_COLOR"), *terminal = getenv("TERM");

    return isatty(STDOUT_FILENO) && !(no_colour && *no_colour) && terminal &&
           strcmp(terminal, "dumb") != 0;
}

const char *paint(colour chosen)
{
    static const char *const escapes[] = {
        [PLAIN] = "\033[0m",  [BOLD] = "\033[1m",  [FAINT] = "\033[2m",   [RED] = "\033[31m",
        [GREEN] = "\033[32m", [BLUE] = "\033[36m", [YELLOW] = "\033[33m", [MAGENTA] = "\033[35m"};

    if (when == BY_TERMINAL)
        when = terminal_has_colours() ? ALWAYS : NEVER;
    return when == ALWAYS ? escapes[chosen] : "";
}

void print_painted(colour chosen, const char *text)
{
    fputs(paint(chosen), stdout);
    print_shown(stdout, text);
    fputs(paint(PLAIN), stdout);
}
