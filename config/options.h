/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Every option's value, as one snapshot. Operations take one when they start
 * (bth_config_resolve) and ask it by field. The fields are generated from
 * options.def: section "save", name "storage_alignment" -> save_storage_alignment.
 */
#ifndef BTH_CONFIG_OPTIONS_H
#define BTH_CONFIG_OPTIONS_H

#include "berth.h"

/* Values of the enum options, in the order of their choices in options.def; those of load.method
 * are berth_load_method. */
enum { BTH_BYTEORDER_NATIVE, BTH_BYTEORDER_LITTLE, BTH_BYTEORDER_BIG };
enum { BTH_SAVE_AUTO, BTH_SAVE_BUFFERED, BTH_SAVE_DIRECT };
enum { BTH_DURABILITY_NONE, BTH_DURABILITY_FILE, BTH_DURABILITY_FULL };
enum { BTH_CHECK_NONE, BTH_CHECK_DIRECTORY, BTH_CHECK_HEADERS, BTH_CHECK_DATA };
enum { BTH_PREFETCH_OFF, BTH_PREFETCH_ADVISE, BTH_PREFETCH_POPULATE, BTH_PREFETCH_READ };
enum { BTH_UNKNOWN_REFUSE, BTH_UNKNOWN_INERT };
enum { BTH_NUMA_LOCAL, BTH_NUMA_INTERLEAVE };
/* Bits of load.mmap_flags. */
enum { BTH_MMAP_SHARED = 1, BTH_MMAP_POPULATE = 2, BTH_MMAP_HUGE = 4 };

/* One int64 a row: bools 0 or 1, enums their position, bytes and counts as they are. */
struct berth_config {
#define BERTH_OPTION(section, name, ...) int64_t section##_##name;
#define BTH_OPTION_TOP(name, ...) int64_t name;
#include "config/options.def"
#undef BERTH_OPTION
#undef BTH_OPTION_TOP
};

/*
 * Copies the configuration for one operation to *config: that of the call if it
 * brings one, under what the environment forces, else what is in force on this thread. With debug
 * on, load_check is raised to at least BTH_CHECK_HEADERS. Fails if a variable of the environment
 * is bad.
 */
int bth_config_resolve(const berth_params *call, struct berth_config *config, berth_error *error);

/* BERTH_E_ARGUMENT: a reserved word of the caller's struct `name` is not 0. */
int bth_check_reserved(const char *name, const uint64_t *reserved, size_t n, berth_error *error);

/* What is in force on this thread, as it was set. */
int bth_config_in_force(struct berth_config *config, berth_error *error);

/* For tests: the environment is read again at the next use. */
void bth_config_reread_environment(void);

#endif
