/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * berth/config.h - the options of Berth, and those that a framework registers.
 */
#ifndef BERTH_CONFIG_H
#define BERTH_CONFIG_H

#include <berth.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Every option has a name "section.name" (the exceptions are "debug" and "trace"), a type, bounds
 * and a default: berth_config_describe and `berth config` show them. The value in force is the
 * first of
 *   1. BERTH_FORCE_<SECTION>_<NAME> in the environment
 *   2. the patch of this thread (berth_config_patch)
 *   3. the value that the program set (berth_config_set)
 *   4. BERTH_<SECTION>_<NAME> in the environment
 *   5. a line "section.name=value" of the file that BERTH_CONFIG in the environment names
 *   6. the default.
 * An alias works like the name itself at every level: "debug" is also "serialization_debug", so
 * BERTH_SERIALIZATION_DEBUG sets it. If the environment has both, the name wins over the alias.
 * "debug" also follows TORCH_SERIALIZATION_DEBUG, of which only "1" counts, as in PyTorch.
 *
 * How values are written: sizes as 4096, 64K or 64KiB (both 65,536), 4GB (4,000,000,000); bools as
 * off or on, 0 or 1, false or true, no or yes; flags with commas between them.
 *
 * Berth reads the environment once, at first use. A variable with an invalid value, or with a name
 * that is near to an option's and is none, makes every operation fail, and the error names it.
 * Other variables that begin with a section, and unknown lines of the file, are logged and ignored:
 * they may be of another version. berth_config_describe works whatever the environment holds.
 *
 * Each operation copies the configuration when it starts. Later changes do not affect it. A forced
 * value also overrides a configuration that is passed to an operation. With debug on, loads check
 * at least what load.check=headers checks, and saves check every byte before it leaves: data that
 * change while they are saved fail the save (BERTH_E_CHECKSUM, where CRCs are computed).
 *
 * Errors: BERTH_E_OPTION: unknown name or invalid value.
 * Threads: any may call these functions, if nothing else is said.
 * Source: the levels are those of torch.utils._config_module.
 */

/*
 * Sets the program's value of one option, for all threads. If a patch of this thread has the
 * option, the value becomes the patch's: it is in force at once on this thread, and goes with the
 * patch.
 * Parameters: name: of the option, or an alias. text: "off", "4096", "1MiB", "direct". source:
 * where the program has it from, such as "--set", for berth_config_describe and messages; NULL:
 * "program". The library copies it, and keeps some thousand different ones; berth_config_describe
 * says "program" for the others.
 */
BERTH_API int berth_config_set(const char *name, const char *text, const char *source,
                               berth_error *error);

/*
 * Removes the program's value of one option. If a patch of this thread has the option, the patch
 * gets the value of the environment or the default.
 * Parameters: name: NULL: of all options.
 */
BERTH_API int berth_config_reset(const char *name, berth_error *error);

/*
 * Patches the configuration of this thread. All assignments take effect, or none does. Patches
 * nest.
 * Parameters: assignments: "name=value", separated by white space.
 * Lifetime: a patch lasts until berth_config_unpatch on the same thread.
 */
BERTH_API int berth_config_patch(const char *assignments, berth_error *error);

/*
 * Undoes the last patch of this thread.
 * Errors: BERTH_E_ARGUMENT: there is no patch.
 */
BERTH_API int berth_config_unpatch(berth_error *error);

/* ---- what options are, and configurations of their own ---- */

/*
 * What an option is, and where its value comes from.
 * Lifetime: the texts are static; `value` is part of the struct.
 */
typedef struct berth_option {
    const char *name;      /* "save.durability" */
    const char *type;      /* "bool", "enum", "int", "bytes", "flags", "text" */
    const char *unit;      /* "bytes", "threads", ... or "" */
    const char *bounds;    /* "none | file | full", "1 to 32768, a power of two" */
    const char *initial;   /* the default, as text */
    const char *help;      /* one paragraph */
    const char *aliases;   /* other names, separated by spaces; or "" */
    const char *source;    /* "default", "environment BERTH_...", "file ...", "patch", "force ...",
                              "program" or what berth_config_set was told */
    char value[64];        /* in force on this thread, as text; a long one is cut */
    const char *successor; /* of a deprecated name: the option that it stands for; else "" */
    int64_t number;   /* the value: of a bool 0 or 1, of an enum its index in the bounds, of flags
                         a sum of 1, 2, 4 and so on, else in the option's unit */
    uint32_t classes; /* berth_option_class: what the option can change */
    bool is_default;  /* the value equals the default, whoever set it */
    const char *text; /* of type "text": the whole value; it stays. Else NULL */
    uint64_t reserved[3];
} berth_option;

/* What an option can change. */
typedef enum berth_option_class {
    BERTH_CLASS_BYTES = 1,      /* the bytes of a file that is saved */
    BERTH_CLASS_ACCEPTANCE = 2, /* which files a load accepts, and what it makes of them */
    BERTH_CLASS_SPEED = 4,      /* only time, memory, and when the bytes are durable */
    BERTH_CLASS_ALL = 7
} berth_option_class;

/*
 * The name of option i, for a loop over all options.
 * Lifetime: static.
 * Returns: "save.compute_crc32", ...; NULL: there is no option i.
 * Threads: any.
 */
BERTH_API const char *berth_config_name(size_t i);

/*
 * Describes an option, with the value that is in force on this thread, or with that of a
 * configuration; then the source is "configuration".
 * Parameters: config: NULL: what is in force. name: of the option, or an alias. option: receives
 * the description.
 */
BERTH_API int berth_config_describe(const berth_config *config, const char *name,
                                    berth_option *option, berth_error *error);

/*
 * Makes a configuration: a copy of what is in force on this thread.
 * Lifetime: the caller frees it with berth_config_free.
 * Threads: any may read one configuration; nobody may change it meanwhile.
 */
BERTH_API berth_config *berth_config_new(berth_error *error);

/*
 * Frees a configuration.
 * Parameters: config: NULL: does nothing.
 * Threads: no operation may use it any more.
 */
BERTH_API void berth_config_free(berth_config *config);

/*
 * Changes a configuration. All assignments take effect, or none does.
 * Parameters: assignments: as in berth_config_patch.
 * Threads: no other thread may use `config` meanwhile.
 */
BERTH_API int berth_config_apply(berth_config *config, const char *assignments, berth_error *error);

/* What berth_config_print writes: "name=value" on each line, which berth_config_parse reads; or C.
 */
typedef enum berth_config_form {
    BERTH_CONFIG_PORTABLE = 0, /* every option */
    BERTH_CONFIG_CHANGED = 1,  /* only what differs from the defaults */
    BERTH_CONFIG_CODE = 2,     /* C calls that make the same changes */
    BERTH_CONFIG_VARIABLES = 3 /* BERTH_SECTION_NAME=value, for a child that inherits the rest */
} berth_config_form;

/*
 * Writes a configuration as text.
 * Parameters: config: NULL: what is in force on this thread. text, text_nbytes: the caller's
 * buffer; the text is cut to fit, and ends with NUL.
 * Returns: the size of the whole text in bytes, without the NUL, as snprintf does; or a negative
 * status.
 */
BERTH_API int64_t berth_config_print(const berth_config *config, berth_config_form form, char *text,
                                     size_t text_nbytes, berth_error *error);

/*
 * Sets the values of portable text, each as berth_config_set does. All take effect, or none
 * does.
 * Parameters: text: lines "name=value", as berth_config_print writes them. `#` starts a comment.
 * Unknown options are logged and skipped: the text may be of another version. source: of the text,
 * such as "file x.conf", as in berth_config_set; NULL: "program".
 * Errors: BERTH_E_OPTION: the message names the option and the line.
 */
BERTH_API int berth_config_parse(const char *text, const char *source, berth_error *error);

/*
 * A hash of the values of all options of some classes. Equal values have equal hashes on every
 * machine, as long as the same options are there.
 * Parameters: config: NULL: what is in force on this thread. classes: BERTH_CLASS_ALL; or some of
 * them, such as BERTH_CLASS_BYTES: files with equal hashes were saved in the same form.
 * Returns: the hash; 0 if a variable of the environment is invalid.
 */
BERTH_API uint64_t berth_config_hash(const berth_config *config, uint32_t classes);

/* ---- watches, and options of frameworks ---- */

/*
 * A function that is called after the value of an option has changed, on the thread that changed
 * it.
 * Parameters: context: of the watch. option: describes the option with the new value; source is
 * "patch" if only this thread has it. It is the callee's until it returns.
 * Threads: several may call it at once. It may call all functions of this part.
 */
typedef void (*berth_config_function)(void *context, const berth_option *option);

/*
 * Watches an option: every set, reset, parse, patch and unpatch that changes the value in force on
 * its thread calls the function. At most 64 watches live at a time.
 * Parameters: name: NULL: all options. function: NULL: ends the watches of this name and context;
 * with no name, all watches of this context.
 * Lifetime: a change that another thread began before the end of a watch may still call it.
 */
BERTH_API int berth_config_watch(const char *name, berth_config_function function, void *context,
                                 berth_error *error);

/* An option of a framework: what a row of berth_config_register says. */
typedef struct berth_option_row {
    const char *name;      /* 1 to 32 of a-z, 0-9, _: "interval" */
    const char *type;      /* "bool", "enum", "int", "bytes", "flags" */
    const char *choices;   /* of enums and flags: "never | daily". Of flags the first is the text of
                              no flags, and excludes the second */
    int64_t minimum;       /* of ints and bytes: 0 or more */
    int64_t maximum;       /* of ints and bytes */
    const char *initial;   /* the default, as text */
    const char *unit;      /* of ints: "steps"; NULL: none */
    const char *aliases;   /* other names, separated by spaces; NULL: none */
    const char *help;      /* one paragraph; NULL: none */
    const char *successor; /* the name is deprecated, and stands for this option; the first use is
                              logged, and all but name, aliases and help is the successor's */
    uint32_t classes;      /* berth_option_class: in which hashes it counts */
    uint64_t reserved[4];
} berth_option_row;

/*
 * Registers a framework's options. From then on they are options as the library's own are, in the
 * section's name: "trainer.interval" has BERTH_TRAINER_INTERVAL and BERTH_FORCE_TRAINER_INTERVAL in
 * the environment. All are registered, or none. They stay until the process ends. A section that
 * has options of the same names already is left as it is.
 * Parameters: section: 1 to 20 of a-z, 0-9, _; not "force", "config", "debug" or "trace". rows, n:
 * copied. At most 128 options can be registered in one process.
 * Errors: BERTH_E_ARGUMENT: a name is taken or malformed, bounds are impossible, there is no room.
 * BERTH_E_OPTION: a default is not within its bounds. BERTH_E_MEMORY.
 * Threads: any.
 */
BERTH_API int berth_config_register(const char *section, const berth_option_row *rows, size_t n,
                                    berth_error *error);

/* ---- patches of a block; PyTorch's setters ---- */

/* The state of a BERTH_WITH_CONFIG; for the macro only. */
typedef struct berth_config_scope {
    bool runs;
    bool is_patched;
    bool is_refused;
} berth_config_scope;

/*
 * Begins the patch of a BERTH_WITH_CONFIG; called again, ends it. For the macro only.
 * Parameters: scope: zeros at first. assignments: as in berth_config_patch.
 */
BERTH_API void berth_config_switch_scope(berth_config_scope *scope, const char *assignments);

static inline berth_config_scope berth_config_open_scope(const char *assignments)
{
    berth_config_scope scope = {false, false, false};
    berth_config_switch_scope(&scope, assignments);
    return scope;
}

static inline void berth_config_close_scope(berth_config_scope *scope)
{
    berth_config_switch_scope(scope, NULL);
}

/*
 * A patch for one block, which ends with the block, however it is left: at its end, by break, goto
 * or return. (break leaves the block, not a loop around it.)
 *   BERTH_WITH_CONFIG("save.durability=file") {
 *       status = berth_save(path, value, NULL, &error);
 *   }
 * If the patch is refused, the block runs, and every operation in it fails with that error.
 */
#define BERTH_JOIN_(a, b) a##b
#define BERTH_JOIN(a, b) BERTH_JOIN_(a, b)
#define BERTH_WITH_CONFIG(assignments)                                                             \
    for (__attribute__((cleanup(berth_config_close_scope))) berth_config_scope BERTH_JOIN(         \
             berth_scope_, __LINE__) = berth_config_open_scope(assignments);                       \
         BERTH_JOIN(berth_scope_, __LINE__).runs; BERTH_JOIN(berth_scope_, __LINE__).runs = false)

/*
 * PyTorch's older setters. Each sets one option: save.compute_crc32, load.mmap_flags,
 * load.endianness.
 * Source: torch.serialization.
 */
static inline int berth_set_crc32_options(bool compute_crc32, berth_error *error)
{
    return berth_config_set("save.compute_crc32", compute_crc32 ? "on" : "off", NULL, error);
}

static inline int berth_set_default_mmap_options(const char *flags, berth_error *error)
{
    return berth_config_set("load.mmap_flags", flags, NULL, error);
}

static inline int berth_set_default_load_endianness(const char *endianness, berth_error *error)
{
    return berth_config_set("load.endianness", endianness, NULL, error);
}

/* ---- what some options mean ---- */

/*
 * load.check: what berth_open looks at.
 * - none: only the head. Storages are where the layout puts them. What lies behind the last record
 *   of the head is not checked.
 * - directory: also the end records and all entries of the directory. Storages must be where the
 *   layout puts them, and every byte of the file must belong to an entry, so that no other reader
 *   finds other records or another archive in between. The local headers and descriptors of all
 *   records that are no storages.
 * - headers: also the local headers and descriptors of storages.
 * - data: also the CRC of every record, and the indices of sparse tensors
 *   (berth_tensor_check_indices).
 *
 * With load.check=data no byte is handed out before the CRC of its record was compared. Where
 * storages are mapped, berth_open does that (params->progress is called, and may cancel). Else it
 * happens when a storage, or a range of it, is first read. berth_open always reads the indices of
 * sparse tensors then, wherever they are; with load.inflate=off not those that are deflated.
 *
 * load.inflate: a storage that is deflated (`zip -r`) is inflated as a whole when any of its bytes
 * are asked for, to memory that counts for io.memory_nbytes and stays until berth_close; its CRC is
 * compared. Opening inflates no storage, but with load.check=data indices of sparse tensors. With
 * load.inflate=off that is BERTH_E_UNSUPPORTED. Rows of it, and a load of it to a device, are
 * BERTH_E_UNSUPPORTED, too.
 *
 * load.method: how a storage becomes memory. With `auto`, a file that is in the page cache (a
 * sample decides) is mapped. A cold file on a disk is read past the page cache, if 64 MiB or more
 * are wanted and there is free memory for them; if memory is short, it is mapped. Otherwise it is
 * read, in requests of io.chunk_nbytes. If this process has loaded the same file before, or with
 * load.reuse=often, a cold file is read into the page cache instead, where memory has room for both
 * copies: the next load maps it. It is never mapped with load.mmap=off, on a network file system or
 * on FUSE, where others may truncate a mapped file. From a disk that rotates, one worker reads.
 *
 * load.prefetch: with populate, advise or read a prefetch of all storages begins with berth_open,
 * as by berth_prefetch_begin, and ends with berth_close. berth_tensor_data counts as
 * berth_prefetch_advance, but does not wait.
 *
 * save.replace: where a file system has no rename, a new file is written at its path, from its
 * beginning to its end; a failure removes it. save.replace=in_place overwrites an old file so, and
 * writes to devices, pipes and mount points; then a failure loses the old content.
 * berth_stats.placed tells. docs/file-systems.md has more.
 */

#ifdef __cplusplus
}
#endif

#endif /* BERTH_CONFIG_H */
