/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The values of all options. An operation takes a copy when it starts
 * (bth_config_copy_for_operation) and reads the fields, which come from options.def: section
 * "save", name "method" -> save_method.
 */
#ifndef BTH_CONFIG_OPTIONS_H
#define BTH_CONFIG_OPTIONS_H

#include "berth.h"

/* Values of options with choices, in the order of options.def (load.method: berth_load_method). */
enum { BTH_BYTEORDER_NATIVE, BTH_BYTEORDER_LITTLE, BTH_BYTEORDER_BIG };
enum { BTH_SAVE_AUTO, BTH_SAVE_BUFFERED, BTH_SAVE_DIRECT };
enum { BTH_DURABILITY_NONE, BTH_DURABILITY_FILE, BTH_DURABILITY_FULL };
enum { BTH_REPLACE_AUTO, BTH_REPLACE_ALWAYS, BTH_REPLACE_IN_PLACE };
enum { BTH_READERS_ALL, BTH_READERS_GROUP, BTH_READERS_OWNER };
enum { BTH_CHECK_NONE, BTH_CHECK_DIRECTORY, BTH_CHECK_HEADERS, BTH_CHECK_DATA };
enum { BTH_REUSE_AUTO, BTH_REUSE_ONCE, BTH_REUSE_OFTEN };
enum { BTH_PREFETCH_OFF, BTH_PREFETCH_ADVISE, BTH_PREFETCH_POPULATE, BTH_PREFETCH_READ };
enum { BTH_UNKNOWN_REFUSE, BTH_UNKNOWN_INERT };
enum { BTH_OLD_TEXT_UTF8, BTH_OLD_TEXT_LATIN1 };
enum { BTH_TIED_NAMES_OFF, BTH_TIED_NAMES_RULE, BTH_TIED_NAMES_ALL };
enum { BTH_REPACKED_ACCEPT, BTH_REPACKED_REFUSE };
enum { BTH_NUMA_LOCAL, BTH_NUMA_INTERLEAVE };
enum { BTH_LARGE_PAGES_AUTO, BTH_LARGE_PAGES_ON, BTH_LARGE_PAGES_OFF };
/* Bits of load.mmap_flags. */
enum { BTH_MMAP_SHARED = 1, BTH_MMAP_POPULATE = 2, BTH_MMAP_HUGE = 4 };

#define BTH_MAX_REGISTERED_OPTIONS 128

/* One int64_t for each row: bools 0 or 1, choices their position, numbers as they are. */
struct berth_config {
#define BTH_OPTION(section, name, ...) int64_t section##_##name;
#define BTH_OPTION_TOP(name, ...) int64_t name;
#include "config/options.def"
#undef BTH_OPTION
#undef BTH_OPTION_TOP
    int64_t registered[BTH_MAX_REGISTERED_OPTIONS];
    size_t n_values; /* of the rows when it was made; those registered later have their defaults */
};

/*
 * Copies the configuration for one operation: that of the call if it has one, with the forced
 * values of the environment, else what is in force on this thread. With debug, load_check is at
 * least BTH_CHECK_HEADERS. Fails if a variable of the environment is invalid.
 */
int bth_config_copy_for_operation(const berth_params *call, struct berth_config *config,
                                  berth_error *error);

/* Refuses a struct of a caller in which a reserved word is not 0. */
#define BTH_CHECK_RESERVED(type, made, error)                                                      \
    bth_check_reserved(#type, (made)->reserved, sizeof(made)->reserved / sizeof *(made)->reserved, \
                       error)
int bth_check_reserved(const char *name, const uint64_t *reserved, size_t n, berth_error *error);

/* The values in force on this thread, as they were set. */
int bth_config_copy_in_force(struct berth_config *config, berth_error *error);

/* For tests: the next use reads the environment again. */
void bth_config_forget_environment(void);

#endif
