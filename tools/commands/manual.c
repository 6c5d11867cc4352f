/* SPDX-License-Identifier: BSD-3-Clause */
/* The man page, made from the table of commands and their parsers. */
#include <berth/config.h>
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "tools/commands/commands.h"
#include "tools/common/options.h"
#include "tools/common/report.h"

/* Text for roff: a hyphen is a minus, a backslash is one, and no line begins with a control. */
static void print_roff(const char *text)
{
    bool at_start = true;

    for (; *text; text++) {
        if (at_start && (*text == '.' || *text == '\''))
            fputs("\\&", stdout);
        at_start = *text == '\n';
        if (*text == '-')
            fputs("\\-", stdout);
        else if (*text == '\\')
            fputs("\\e", stdout);
        else
            putchar(*text);
    }
}

static void print_paragraph(const char *request, const char *text)
{
    printf("%s\n", request);
    print_roff(text);
    putchar('\n');
}

/* Those of all commands, or the others: context. */
static void print_option(void *of_all, const struct argp_option *option)
{
    if (option_is_common(option) != (of_all != NULL))
        return;
    fputs(".TP\n", stdout);
    if (isascii(option->key) && isprint(option->key))
        printf("\\fB\\-%c\\fR, ", option->key);
    fputs("\\fB\\-\\-", stdout);
    print_roff(option->name);
    fputs("\\fR", stdout);
    if (option->arg)
        printf("=\\fI%s\\fR", option->arg);
    putchar('\n');
    print_roff(option->doc);
    putchar('\n');
}

static void print_configuration(void)
{
    berth_option option;

    print_paragraph(
        ".SH CONFIGURATION",
        "Set by --set NAME=VALUE, by a line of the file that --config or BERTH_CONFIG in "
        "the environment names, or by a variable such as BERTH_SAVE_DURABILITY. `berth "
        "config NAME` tells the value in force and where it was set.");
    for (size_t i = 0; berth_config_name(i); i++) {
        if (berth_config_describe(NULL, berth_config_name(i), &option, NULL) < 0)
            continue;
        printf(".TP\n\\fB%s\\fR = ", option.name);
        print_roff(option.initial);
        putchar('\n');
        print_roff(option.help);
        fputs(" (", stdout);
        print_roff(option.bounds);
        fputs(")\n", stdout);
    }
}

static void print_ending(void)
{
    print_paragraph(".SH \"EXIT STATUS\"\n.TP\n.B 0", "Yes: done, good, equal.");
    print_paragraph(".TP\n.B 1", "A negative verdict: broken, different or not found.");
    print_paragraph(".TP\n.B 2", "Wrong usage or trouble.");
    print_paragraph(".TP\n.B 129, 130, 143", "Ended by SIGHUP, SIGINT (^C) or SIGTERM.");
    print_paragraph(".SH ENVIRONMENT\n.TP\n.B BERTH_CONFIG", "A file of NAME=VALUE lines.");
    print_paragraph(".TP\n.B BERTH_\\fISECTION\\fB_\\fINAME\\fR", "The value of an option.");
    print_paragraph(".TP\n.B BERTH_SERIALIZATION_DEBUG",
                    "1: compare every calculated offset with the file's own records.");
    print_paragraph(".TP\n.B BERTH_TRACE", "A file to write a trace to, as --trace does.");
    print_paragraph(".TP\n.B TMPDIR",
                    "Where a pipe that is read is kept meanwhile; /tmp otherwise.");
    print_paragraph(".TP\n.B NO_COLOR, TERM", "No colours if NO_COLOR is set, or TERM is dumb.");
    fputs(".SH EXAMPLES\n.nf\n", stdout);
    print_roff("berth verify *.pt && berth convert model.pt model.safetensors\n"
               "berth show model.pt optimizer.param_groups.0\n"
               "berth convert training.pt weights.safetensors --root model\n"
               "berth copy training.pt small.pt --without 'optimizer.*'\n"
               "berth diff old.pt new.pt\n");
    fputs(".fi\n", stdout);
}

int print_manual(void)
{
    printf(".TH BERTH 1 \"\" \"berth %s\" \"User Commands\"\n", berth_version());
    print_paragraph(".SH NAME", "berth - save, load and examine PyTorch checkpoints");
    fputs(".SH SYNOPSIS\n.B berth\n.I COMMAND\n[\\fIOPTION\\fR...] [\\fIARGUMENT\\fR...]\n",
          stdout);
    print_paragraph(
        ".SH DESCRIPTION",
        "Saves, loads and examines the files that torch.save writes, and safetensors. Code "
        "in them is never run. A file is replaced as a whole or not at all. A FILE can be -, "
        "standard input: a "
        "pipe is read into an unlinked temporary in TMPDIR first. OUT can be -, standard "
        "output. A FILE that is only read can be a URL, https://HOST/PATH or s3://BUCKET/KEY: "
        "only what is needed is requested. Proxies, certificates and credentials of S3 are found "
        "as by curl and the tools of AWS; libcurl must be installed.");
    fputs(".SH COMMANDS\n", stdout);
    for (const command *row = commands; row->name; row++) {
        printf(".SS \"berth %s [OPTION...]%s%s\"\n", row->name, row->argp->args_doc ? " " : "",
               row->argp->args_doc ? row->argp->args_doc : "");
        print_roff(row->argp->doc);
        putchar('\n');
        for_each_option(row->argp, print_option, NULL);
    }
    print_paragraph(".SH \"OPTIONS OF ALL COMMANDS\"",
                    "An option may be cut, as long as it is clear.");
    bool of_all = true;
    for_each_option(commands[0].argp, print_option, &of_all);
    print_configuration();
    print_ending();
    return finish_output(EXIT_YES);
}
