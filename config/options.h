/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Every option's value, as one snapshot. Operations take one when they start
 * (berth_config_resolve) and ask it by field. The fields are generated from
 * options.def: section "save", name "storage_alignment" -> save_storage_alignment.
 */
#ifndef BERTH_CONFIG_OPTIONS_H
#define BERTH_CONFIG_OPTIONS_H

#include "berth.h"

/* Values of the enum options, in the order of their choices in options.def; those of load.method
 * are berth_load_method. */
enum { BERTH_BYTEORDER_NATIVE, BERTH_BYTEORDER_LITTLE, BERTH_BYTEORDER_BIG };
enum { BERTH_SAVE_AUTO, BERTH_SAVE_BUFFERED, BERTH_SAVE_DIRECT };
enum { BERTH_DURABILITY_NONE, BERTH_DURABILITY_FILE, BERTH_DURABILITY_FULL };
enum { BERTH_CHECK_NONE, BERTH_CHECK_DIRECTORY, BERTH_CHECK_HEADERS, BERTH_CHECK_DATA };
enum { BERTH_PREFETCH_OFF, BERTH_PREFETCH_ADVISE, BERTH_PREFETCH_POPULATE, BERTH_PREFETCH_READ };
enum { BERTH_UNKNOWN_REFUSE, BERTH_UNKNOWN_INERT };
enum { BERTH_NUMA_LOCAL, BERTH_NUMA_INTERLEAVE };
/* Bits of load.mmap_flags. */
enum { BERTH_MMAP_SHARED = 1, BERTH_MMAP_POPULATE = 2, BERTH_MMAP_HUGE = 4 };

/* One int64 a row: bools 0 or 1, enums their position, bytes and counts as they are. */
struct berth_config {
#define BERTH_OPTION(section, name, ...) int64_t section##_##name;
#define BERTH_OPTION_TOP(name, ...) int64_t name;
#include "config/options.def"
#undef BERTH_OPTION
#undef BERTH_OPTION_TOP
};

/*
 * Copies the configuration for one operation to *config: that of the call if it
 * brings one, under what the environment forces, else what is in force on this thread. With debug
 * on, load_check is raised to at least BERTH_CHECK_HEADERS. Fails if a variable of the environment
 * is bad.
 */
int berth_config_resolve(const berth_call *call, struct berth_config *config, berth_error *error);

/* What is in force on this thread, as it was set. */
int berth_config_in_force(struct berth_config *config, berth_error *error);

/* For tests: the environment is read again at the next use. */
void berth_config_reread_environment(void);

#endif
