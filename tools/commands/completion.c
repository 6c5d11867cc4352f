/* SPDX-License-Identifier: BSD-3-Clause */
/* Completions for shells, made from the table of commands and their parsers. */
#include <berth/config.h>
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "tools/commands/commands.h"
#include "tools/common/options.h"
#include "tools/common/report.h"

static bool has_letter(const struct argp_option *option)
{
    return isascii(option->key) && isprint(option->key);
}

/* The words that an option takes; NULL: others. */
static const char *choices(const struct argp_option *option)
{
    if (!option->arg)
        return NULL;
    return !strcmp(option->arg, "WHEN")     ? "auto always never"
           : !strcmp(option->arg, "FORMAT") ? "pt safetensors"
                                            : NULL;
}

/* Which values an option takes, by the word of its help. */
static bool takes(const struct argp_option *option, const char *argument)
{
    return option->arg && !strcmp(option->arg, argument);
}

/* The first clause of a help text, quoted for a shell: `special` characters get a backslash. */
static void print_clause(const char *text, const char *special, const char *quote)
{
    for (; *text && !(strchr(":;.", *text) && (text[1] == ' ' || !text[1])); text++) {
        if (*text == '\'')
            fputs(quote, stdout);
        else
            printf("%s%c", strchr(special, *text) ? "\\" : "", *text);
    }
}

static const char *last_word(const char *name)
{
    const char *space = strchr(name, ' ');

    return space ? space + 1 : name;
}

static void print_config_names(const char *end)
{
    for (size_t i = 0; berth_config_name(i); i++)
        printf("%s%s%s", i ? " " : "", berth_config_name(i), end);
}

/* The words that can be first; those that follow "bench" are its own. */
static void print_words(bool of_bench)
{
    bool is_first = true, had_group = false;

    for (const command *row = commands; row->name; row++) {
        bool is_group = strchr(row->name, ' ') != NULL;
        if (of_bench ? !is_group : is_group && had_group)
            continue;
        had_group |= is_group;
        const char *word = of_bench ? last_word(row->name) : row->name;
        printf("%s%.*s", is_first ? "" : " ", (int)strcspn(word, " "), word);
        is_first = false;
    }
}

/* ---- bash ---- */

static void print_bash_option(void *context, const struct argp_option *option)
{
    (void)context;
    printf(" --%s%s", option->name, option->arg ? "=" : "");
}

static void print_bash(void)
{
    fputs("# bash completion for berth, made by `berth --completion bash`\n"
          "_berth()\n{\n"
          "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} at=1 options=\n"
          "    COMPREPLY=()\n"
          "    [[ $prev = '=' ]] && prev=${COMP_WORDS[COMP_CWORD-2]}\n"
          "    [[ $cur = '=' ]] && prev=${COMP_WORDS[COMP_CWORD-1]} cur=\n"
          "    [[ ${COMP_WORDS[1]} = help && $COMP_CWORD -gt 1 ]] && at=2\n"
          "    local command=${COMP_WORDS[at]}\n"
          "    if [[ $COMP_CWORD -eq $at ]]; then\n"
          "        COMPREPLY=($(compgen -W '",
          stdout);
    print_words(false);
    fputs(" help --help --version' -- \"$cur\"))\n        return\n    fi\n"
          "    if [[ $command = bench ]]; then\n"
          "        at=$((at + 1))\n"
          "        command=\"bench ${COMP_WORDS[at]}\"\n"
          "        if [[ $COMP_CWORD -eq $at ]]; then\n"
          "            COMPREPLY=($(compgen -W '",
          stdout);
    print_words(true);
    fputs("' -- \"$cur\"))\n            return\n        fi\n    fi\n"
          "    case $prev in\n"
          "    --set)\n        compopt -o nospace\n        COMPREPLY=($(compgen -W '",
          stdout);
    print_config_names("=");
    fputs("' -- \"$cur\"))\n        return ;;\n"
          "    --color)\n        COMPREPLY=($(compgen -W 'auto always never' -- \"$cur\"))\n"
          "        return ;;\n"
          "    --to)\n        COMPREPLY=($(compgen -W 'pt safetensors' -- \"$cur\"))\n"
          "        return ;;\n    esac\n    case $command in\n",
          stdout);
    for (const command *row = commands; row->name; row++) {
        printf("    '%s') options='", row->name);
        for_each_option(row->argp, print_bash_option, NULL);
        fputs("' ;;\n", stdout);
    }
    fputs("    esac\n    if [[ $cur = -* ]]; then\n"
          "        COMPREPLY=($(compgen -W \"$options\" -- \"$cur\"))\n"
          "        [[ ${COMPREPLY[0]-} = *= ]] && compopt -o nospace\n"
          "    elif [[ $command = config ]]; then\n        COMPREPLY=($(compgen -W '",
          stdout);
    print_config_names("");
    fputs("' -- \"$cur\"))\n    fi\n}\n"
          "complete -o default -F _berth berth\n",
          stdout);
}

/* ---- zsh ---- */

static void print_zsh_value(const struct argp_option *option)
{
    if (choices(option))
        printf(":%s:(%s)", option->name, choices(option));
    else if (takes(option, "FILE"))
        fputs(":file:_files", stdout);
    else if (takes(option, "NAME=VALUE")) {
        fputs(":option:compadd -S = -- ", stdout);
        print_config_names("");
    } else if (option->arg)
        printf(":%s: ", option->arg);
}

static void print_zsh_option(void *context, const struct argp_option *option)
{
    const char *after = option->arg ? "=" : "";

    (void)context;
    fputs("            ", stdout);
    if (has_letter(option))
        printf("'(-%c --%s)'{-%c%s,--%s%s}", option->key, option->name, option->key,
               option->arg ? "+" : "", option->name, after);
    else
        printf("'%s--%s%s'", option->arg ? "*" : "", option->name, after);
    fputs("'[", stdout);
    print_clause(option->doc, "[]:\\", "'\\''");
    fputs("]", stdout);
    print_zsh_value(option);
    fputs("' \\\n", stdout);
}

/* Commands with their summaries; a group once. */
static void print_zsh_commands(const char *name, bool of_bench)
{
    bool had_group = false;

    printf("    %s=(\n", name);
    for (const command *row = commands; row->name; row++) {
        bool is_group = strchr(row->name, ' ') != NULL;
        if (of_bench ? !is_group : is_group && had_group)
            continue;
        had_group |= is_group;
        const char *word = of_bench ? last_word(row->name) : row->name;
        printf("        '%.*s:", (int)strcspn(word, " "), word);
        print_clause(is_group && !of_bench ? "time a save, a load or rows" : row->summary, "",
                     "'\\''");
        fputs("'\n", stdout);
    }
    fputs("    )\n", stdout);
}

static void print_zsh_case(const command *row)
{
    const char *words = row->argp->args_doc;

    printf("    '%s')\n        _arguments -s -S \\\n", row->name);
    for_each_option(row->argp, print_zsh_option, NULL);
    if (!strcmp(row->name, "config")) {
        fputs("            ':option:(", stdout);
        print_config_names("");
        fputs(")' ;;\n", stdout);
    } else {
        printf("            '*:%s:%s' ;;\n", words && strstr(words, "FOLDER") ? "folder" : "file",
               words && strstr(words, "FOLDER") ? "_files -/" : "_files");
    }
}

static void print_zsh(void)
{
    fputs("#compdef berth\n# Made by `berth --completion zsh`.\n_berth()\n{\n"
          "    local -a commands benchmarks\n"
          "    local command=${words[2]}\n",
          stdout);
    print_zsh_commands("commands", false);
    print_zsh_commands("benchmarks", true);
    fputs("    if (( CURRENT == 2 )) || [[ $command = help && CURRENT -eq 3 ]]; then\n"
          "        _describe command commands\n        return\n    fi\n"
          "    if [[ $command = bench ]]; then\n"
          "        if (( CURRENT == 3 )); then\n"
          "            _describe benchmark benchmarks\n            return\n        fi\n"
          "        command=\"bench ${words[3]}\"\n"
          "        shift words\n        (( CURRENT-- ))\n    fi\n"
          "    shift words\n    (( CURRENT-- ))\n"
          "    case $command in\n",
          stdout);
    for (const command *row = commands; row->name; row++)
        print_zsh_case(row);
    fputs("    esac\n}\n_berth \"$@\"\n", stdout);
}

/* ---- fish ---- */

/* When the words of a command are there. */
static void print_fish_condition(const char *name)
{
    const char *word = last_word(name);

    fputs("complete -c berth -n '", stdout);
    if (word != name)
        printf("__fish_seen_subcommand_from %.*s; and ", (int)(word - name - 1), name);
    printf("__fish_seen_subcommand_from %s'", word);
}

static void print_fish_option(void *context, const struct argp_option *option)
{
    print_fish_condition(context);
    if (has_letter(option))
        printf(" -s %c", option->key);
    printf(" -l %s", option->name);
    if (choices(option))
        printf(" -x -a '%s'", choices(option));
    else if (takes(option, "NAME=VALUE")) {
        fputs(" -x -a '", stdout);
        print_config_names("=");
        fputs("'", stdout);
    } else if (option->arg)
        fputs(takes(option, "FILE") ? " -r" : " -x", stdout);
    fputs(" -d '", stdout);
    print_clause(option->doc, "\\", "\\'");
    fputs("'\n", stdout);
}

static void print_fish(void)
{
    fputs(
        "# fish completion for berth, made by `berth --completion fish`\n"
        "complete -c berth -n __fish_use_subcommand -f -a bench -d 'time a save, a load or rows'\n",
        stdout);
    for (const command *row = commands; row->name; row++) {
        const char *word = last_word(row->name);
        printf("complete -c berth -n '%s' -a %s -d '",
               word == row->name ? "__fish_use_subcommand" : "__fish_seen_subcommand_from bench",
               word);
        print_clause(row->summary, "\\", "\\'");
        fputs("'\n", stdout);
        for_each_option(row->argp, print_fish_option, (void *)(uintptr_t)row->name);
    }
    print_fish_condition("config");
    fputs(" -f -a '", stdout);
    print_config_names("");
    fputs("'\n", stdout);
}

int print_completion(const char *shell)
{
    if (!strcmp(shell, "bash"))
        print_bash();
    else if (!strcmp(shell, "zsh"))
        print_zsh();
    else if (!strcmp(shell, "fish"))
        print_fish();
    else
        return print_trouble("--completion: '%s' is not bash, zsh or fish", shell);
    return finish_output(EXIT_YES);
}
