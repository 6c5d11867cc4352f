/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * berth/more.h - what few programs need: hooks, statistics, rare values, walks, other targets and
 * sources, plans, records, rules for single storages, files of other formats, temporaries.
 */
#ifndef BERTH_MORE_H
#define BERTH_MORE_H

#include <berth.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ===================================================================== */
/*  Hooks of the process, and texts                                      */
/* ===================================================================== */

/*
 * Where Berth gets its memory. It does not use this for mapped files, nor for memory of 2 MiB and
 * more that storages are read into: that is mapped in large pages, where the system has them.
 *
 * `reallocate` works as realloc does: NULL allocates, nbytes 0 frees. If there is no memory it
 * returns NULL and the old block stays valid. This struct never changes.
 * Threads: Berth calls it from several threads at once.
 */
typedef struct berth_allocator {
    void *(*reallocate)(void *context, void *pointer, size_t nbytes);
    void *context;
} berth_allocator;

/*
 * Receives messages that are no errors: an option fell back, offsets were taken from the directory.
 * `message` is one line without a newline. Without a log function nothing is written anywhere.
 * Threads: Berth calls it from several threads at once, also while it holds locks. So it must not
 * call Berth.
 */
typedef void (*berth_log_function)(void *context, const char *message);

/*
 * Sets the allocator of the process.
 * Parameters: allocator: copied; NULL: the C library's.
 * Threads: call it before anything else of Berth, from one thread.
 */
BERTH_API void berth_set_allocator(const berth_allocator *allocator);

/*
 * Sets the log function of the process.
 * Parameters: function: NULL: no log. context: passed to it.
 * Threads: call it before anything else of Berth, from one thread.
 */
BERTH_API void berth_set_log(berth_log_function function, void *context);

/* How berth_show_text escapes. */
typedef enum berth_text_form {
    BERTH_TEXT_PLAIN = 0, /* \n, \x1b, \u202e, \U000e0001; a byte that is no UTF-8: \xff */
    BERTH_TEXT_JSON = 1   /* for the inside of a string of JSON: \u001b, surrogates; \ufffd */
} berth_text_form;

/*
 * Makes a text from a file safe for a terminal: what moves the cursor, ends a line, turns, joins or
 * hides text, is not seen, or is no UTF-8 is shown as an escape. All else stays, backslashes too.
 * Messages of errors have been made so.
 * Parameters: out, out_nbytes: the caller's; what does not fit is left out, but no part of a
 * character or of an escape is written. NULL, 0: only counts.
 * Returns: the size of the whole in bytes, without NUL. It is `nbytes` only if nothing is escaped.
 * Threads: any.
 */
BERTH_API size_t berth_show_text(const char *text, size_t nbytes, berth_text_form form, char *out,
                                 size_t out_nbytes);

/*
 * The name of a kind, for example "OrderedDict".
 * Lifetime: static.
 * Returns: a text; "unknown" for a number that is no kind.
 */
BERTH_API const char *berth_kind_name(berth_kind kind);

/* ===================================================================== */
/*  Statistics                                                           */
/* ===================================================================== */

/*
 * berth_params.base, of saves to a path: an earlier checkpoint on the same file system. The new
 * file shares its blocks where their bytes are equal, so that they are not written again, on file
 * systems that can (XFS, btrfs). The new file is the same, byte for byte, as without it, and
 * neither file changes if the other one is written to or removed. It may be the path itself, and
 * need not exist: a base that cannot be used is no error, and base_reason says what is in the way.
 * "": none, whatever save.base says. What is shared is whole blocks of storages of 64 KiB or more,
 * where the base has the same bytes: in the storage of the same name and size, or in one of the
 * same CRC and size, at offsets that are equal modulo the block of the file system: with
 * save.storage_alignment=4096 in both files they always are. Joint saves: berth/joint.h.
 * Lifetime: the text is the caller's, and is not used after the function that begins the save.
 */

/*
 * What an operation did. Times are in seconds. `limited_by` names the slowest stage: speeding up
 * another one will not help.
 * Lifetime: texts are static.
 */
typedef struct berth_stats {
    double plan_seconds;     /* saves: pickling and computing the layout; loads: parsing */
    double copy_seconds;     /* jobs with a snapshot: copying the tensors */
    double transfer_seconds; /* reading or writing */
    double sync_seconds;     /* making the file durable */
    double total_seconds;
    double device_seconds;  /* summed over all workers: waiting for copies from or to devices */
    double render_seconds;  /* summed over all workers: checksums, byte swaps, assembling blocks */
    double disk_seconds;    /* summed over all workers: reading or writing */
    double crc32_seconds;   /* part of render_seconds: checksums; saves measure a sample */
    const char *limited_by; /* "device", "processor", "disk"; NULL: nothing was transferred */
    uint64_t device_nbytes; /* part of requested_nbytes: on devices */
    uint64_t requested_nbytes; /* what the caller wanted transferred */
    uint64_t moved_nbytes;     /* what was read or written */
    uint64_t n_requests;       /* reads or writes */
    uint64_t n_records;
    uint64_t n_storages;
    uint64_t memory_nbytes;  /* saves: buffers of all workers, at most io.memory_nbytes; loads:
                                host memory for what was read, and staging buffers */
    bool calculated_offsets; /* loads: the layout found the storages, not the directory */
    bool repacked;           /* loads: as in berth_info */
    const char *method;      /* "buffered", "direct", "direct, then buffered" (a direct write was
                                refused), "map", "read", "direct, then read", "memory",
                                "mixed" (storages differ), ... */
    const char *reason;      /* why this method */
    uint64_t n_left_out;     /* saves with BERTH_TENSORS_ONLY: values that were left out */
    const char *placed;     /* saves to paths: "renamed"; "in place" (save.replace); NULL: others */
    const char *durability; /* saved files that succeeded: what they reached, "none", "file" or
                               "full": less than save.durability if the file system cannot sync */
    const char *pages;      /* new memory of 2 MiB or more, by io.large_pages: "large", "small",
                               "large and small"; NULL: there was none */
    const char *pages_reason; /* why; NULL: there was none */
    uint64_t behind_nbytes;   /* loads: as in berth_info */
    uint64_t shared_nbytes;   /* saves with a base: whole blocks that are not written, but shared */
    uint64_t compared_nbytes; /* likewise: bytes of clones that were compared */
    const char *base_reason;  /* likewise: why nothing, or not all that seemed equal, is shared;
                                 NULL: no base, or no reason */
    uint64_t reserved[2];
} berth_stats;

/* What is known of a record's CRC. */
typedef enum berth_crc_verdict {
    BERTH_CRC_UNCHECKED = 0, /* not compared yet */
    BERTH_CRC_GOOD = 1,      /* loads: the bytes match it; saves: computed */
    BERTH_CRC_ABSENT = 2,    /* none is recorded, or the record is empty */
    BERTH_CRC_BAD = 3        /* the bytes do not match it */
} berth_crc_verdict;

/*
 * What happened to one storage.
 * Lifetime: texts are static.
 */
typedef struct berth_storage_stats {
    const char *method; /* saves: "direct", "buffered", "direct, then buffered": written from the
                           tensor's memory; "direct, copied", "buffered, copied": through a
                           buffer; "direct, from device", "buffered, from device": through a
                           staging buffer; "shared": the base has most of it; "none". Loads: "map",
                           "read", "direct", "direct, then read", "memory"; "none": not loaded */
    const char *reason; /* why this method and no better one */
    const char *device; /* loads: where it goes or is: "cpu", "cuda:0", ... */
    uint64_t nbytes;
    uint64_t moved_nbytes; /* read or written */
    berth_crc_verdict crc32;
    uint64_t reserved[3];
} berth_storage_stats;

/* ===================================================================== */
/*  Rare values                                                          */
/* ===================================================================== */

/* ---- storages ---- */

/* In place of the data of a storage, or of a tensor: another process has them (berth_joint_begin).
 */
#define BERTH_ELSEWHERE ((const void *)~(uintptr_t)0)

/*
 * Makes a storage from memory of the host.
 * Parameters: dtype: the type of the elements, which decides the storage class in the file;
 * BERTH_DTYPE_NONE: untyped. data: the bytes, or BERTH_ELSEWHERE. nbytes: a multiple of the item's
 * size. location: where the file says that the storage was: "cpu", "cuda:0", ...; NULL: "cpu".
 * Lifetime: the bytes stay the caller's. They must live, unchanged, as long as the tree.
 * Returns: the storage; NULL on failure, and berth_tree_error tells why.
 * Errors: BERTH_E_ARGUMENT: nbytes is no multiple of the item's size, or the location is "meta",
 * which has no bytes. BERTH_E_MEMORY.
 */
BERTH_API berth_storage *berth_storage_new(berth_tree *tree, berth_dtype dtype, const void *data,
                                           uint64_t nbytes, const char *location);

/*
 * Facts of a storage.
 * Lifetime: the struct and its texts live as long as the tree or checkpoint.
 */
typedef struct berth_storage_info {
    const char *key;      /* of its record "data/<key>"; "": the caller made the storage */
    const char *location; /* where it was when it was saved: "cpu", "cuda:0", ... */
    berth_dtype dtype;    /* of its elements; BERTH_DTYPE_NONE: untyped */
    uint64_t nbytes;
} berth_storage_info;

/*
 * The facts of a storage.
 * Returns: NULL for NULL.
 * Threads: any.
 */
BERTH_API const berth_storage_info *berth_storage_get_info(const berth_storage *storage);

/*
 * Whether the elements lie in row-major order without gaps. A tensor without elements is
 * contiguous.
 * Returns: false for NULL.
 * Threads: any.
 */
static inline bool berth_tensor_is_contiguous(const berth_tensor *tensor)
{
    bool contiguous = tensor != NULL;
    uint64_t stride = 1; /* of this dimension, if there are no gaps */
    for (int32_t i = tensor ? tensor->rank : 0; i-- > 0; stride *= (uint64_t)tensor->shape[i]) {
        if (tensor->shape[i] == 0)
            return true;
        if (tensor->shape[i] != 1 && (uint64_t)tensor->stride[i] != stride)
            contiguous = false;
    }
    return contiguous;
}

/* ---- making values: see the rules of berth_make_... in berth.h ---- */

/* A complex. */
BERTH_API berth_value *berth_make_complex(berth_tree *tree, double real, double imaginary);

/*
 * A bytes, a bytearray, or an int of any size.
 * Parameters: kind: BERTH_KIND_BYTES, BERTH_KIND_BYTEARRAY; or BERTH_KIND_INT: bytes are in two's
 * complement, little-endian, 1 to 255 of them.
 */
BERTH_API berth_value *berth_make_bytes(berth_tree *tree, berth_kind kind, const void *bytes,
                                        size_t nbytes);

/*
 * A tuple. It cannot grow.
 * Parameters: items: n_items values of the same tree, in order; NULL if n_items is 0.
 */
BERTH_API berth_value *berth_make_tuple(berth_tree *tree, berth_value *const *items,
                                        size_t n_items);

/* An empty set: berth_set_add fills it. */
static inline berth_value *berth_make_set(berth_tree *tree)
{
    return berth_make_dict(tree, BERTH_KIND_SET);
}

/*
 * A torch.Size.
 * Shapes: shape: rank items, 0 to BERTH_MAX_RANK of them; NULL if rank is 0.
 */
BERTH_API berth_value *berth_make_size(berth_tree *tree, const int64_t *shape, int32_t rank);

/*
 * torch.device(type, index).
 * Parameters: type: "cpu", "cuda", ... index: at most 127; less than 0: torch.device(type).
 * Source: torch.device; its index is an int8_t.
 */
BERTH_API berth_value *berth_make_device(berth_tree *tree, const char *type, int64_t index);

/* The memory layout of a tensor. Source: torch.layout. */
typedef enum berth_layout_kind {
    BERTH_SPARSE_COO = 1,
    BERTH_SPARSE_CSR = 2,
    BERTH_SPARSE_CSC = 3,
    BERTH_SPARSE_BSR = 4,
    BERTH_SPARSE_BSC = 5,
    BERTH_STRIDED = 6,
    BERTH_JAGGED = 7
} berth_layout_kind;

/*
 * A constant: None, True, False, or one of torch, such as torch.float32.
 * Parameters: kind: BERTH_KIND_NONE, _BOOL, _DTYPE, _QSCHEME or _LAYOUT. number: 0; 0 or 1; a value
 * of berth_dtype, berth_qscheme or berth_layout_kind.
 */
BERTH_API berth_value *berth_make_constant(berth_tree *tree, berth_kind kind, int number);

static inline berth_value *berth_make_none(berth_tree *tree)
{
    return berth_make_constant(tree, BERTH_KIND_NONE, 0);
}

static inline berth_value *berth_make_bool(berth_tree *tree, bool value)
{
    return berth_make_constant(tree, BERTH_KIND_BOOL, value);
}

/*
 * A storage without a tensor around it.
 * Parameters: storage: of the same tree.
 */
BERTH_API berth_value *berth_make_storage(berth_tree *tree, berth_storage *storage);

/*
 * A sparse tensor; or a nested one, for which berth_make_nested is shorter.
 * Parameters: parts: tensors. COO: {indices, values}. CSR and BSR: {crow_indices, col_indices,
 * values}. CSC and BSC: {ccol_indices, row_indices, values}. BERTH_STRIDED, rank 0: those of
 * berth_make_nested. is_coalesced: for COO: the indices are sorted, and none occurs twice. The
 * indices are not checked: see berth_tensor_check_indices.
 * Shapes: shape: rank items. The shapes of the parts must agree with it, as in PyTorch.
 * Errors: BERTH_E_TENSOR: the parts do not agree with each other or with the shape.
 */
BERTH_API berth_value *berth_make_sparse(berth_tree *tree, berth_layout_kind layout,
                                         const int64_t *shape, int32_t rank,
                                         berth_value *const *parts, bool is_coalesced);

/*
 * A nested tensor (torch.nested, strided layout).
 * Parameters: parts: four tensors: buffer, sizes, strides, storage offsets.
 * Errors: BERTH_E_TENSOR: the parts do not agree.
 * Source: PyTorch 2.15 loads it with weights_only=False alone. A save logs that once.
 */
static inline berth_value *berth_make_nested(berth_tree *tree, berth_value *const parts[4])
{
    return berth_make_sparse(tree, BERTH_STRIDED, NULL, 0, parts, false);
}

/*
 * A tensor with Python attributes.
 * Parameters: tensor: a tensor, a sparse one, or a Parameter. state: a dict of the attributes, or
 * what PyTorch pickles in its place.
 * Errors: a save fails with BERTH_E_UNSUPPORTED if an attribute has a name of the tensor's own
 * (`data`, `grad`, `shape`, `__class__`, ...), because PyTorch would then set something else. It
 * also fails if such a value is inside a Parameter.
 * Source: it is written as _rebuild_parameter_with_state (Parameters) or _rebuild_from_type_v2.
 */
BERTH_API berth_value *berth_make_subclass(berth_tree *tree, berth_value *tensor,
                                           berth_value *state);

/* ---- filling containers: as berth_list_append ---- */

/*
 * dict[key] = value, for any key.
 * Parameters: dict: as for berth_dict_set; or a SET: then value is NULL, and the key its item. key:
 * of the same tree.
 * Errors: BERTH_E_UNSUPPORTED: the key is not hashable.
 */
BERTH_API int berth_dict_set_value(berth_value *dict, berth_value *key, berth_value *value);

/* set.add(item). An item that is equal to one of the SET is not added again. Errors: as above. */
static inline int berth_set_add(berth_value *set, berth_value *item)
{
    return berth_dict_set_value(set, item, NULL);
}

/*
 * Sets the attributes of an OrderedDict: `_metadata` of a state_dict. For tensors there is
 * berth_make_subclass.
 * Parameters: state: a dict.
 */
BERTH_API int berth_value_set_state(berth_value *value, berth_value *state);

/* ---- reading values: see the rules of berth_as_... in berth.h ---- */

/*
 * A COMPLEX.
 * Parameters: real, imaginary: may be NULL.
 */
BERTH_API bool berth_as_complex(const berth_value *value, double *real, double *imaginary);

/*
 * A NONE, BOOL, DTYPE, QSCHEME or LAYOUT, as `kind` says. A SPARSE has a LAYOUT too. A STORAGE has
 * a DTYPE, that of the class which names it, if it is typed; an empty storage may be named by
 * several classes.
 * Parameters: number: becomes what berth_make_constant takes.
 */
BERTH_API bool berth_as_constant(const berth_value *value, berth_kind kind, int *number);

static inline bool berth_as_bool(const berth_value *value, bool *result)
{
    int number;
    bool is_bool = berth_as_constant(value, BERTH_KIND_BOOL, &number);
    *result = number != 0;
    return is_bool;
}

/*
 * A SIZE, or the shape of a SPARSE.
 * Parameters: rank: receives the number of items.
 * Shapes: the result has *rank items.
 */
BERTH_API const int64_t *berth_as_size(const berth_value *value, int32_t *rank);

/* A STORAGE. */
BERTH_API berth_storage *berth_as_storage(const berth_value *value);

/* What a value has beside its items. */
typedef enum berth_part {
    BERTH_PART_INNER = 0,      /* PARAMETER, SUBCLASS: the tensor inside. CALL: what is called */
    BERTH_PART_STATE = 1,      /* attributes: ORDERED_DICT, TENSOR, PARAMETER, SUBCLASS, CALL */
    BERTH_PART_LIST_ITEMS = 2, /* CALL: a LIST of what Python would append to the object */
    BERTH_PART_DICT_ITEMS = 3, /* CALL: a DICT of what Python would set in it by key */
    BERTH_PART_TYPE = 4        /* SUBCLASS of an inert file: its class, a GLOBAL or a CALL */
} berth_part;

/*
 * A part of a value. In names it is "x.__dict__", "x.list_items.0", "x.dict_items.key". The TYPE
 * has no name.
 * Returns: the part; NULL if there is none.
 */
BERTH_API berth_value *berth_value_part(const berth_value *value, berth_part part);

/* A flag of a sparse COO tensor, beside BERTH_REQUIRES_GRAD: see berth_value_flags. */
#define BERTH_COALESCED 16u

/*
 * The flags of a value.
 * Returns: BERTH_REQUIRES_GRAD: of a tensor or PARAMETER. BERTH_COALESCED: of a SPARSE. Else 0.
 */
BERTH_API uint32_t berth_value_flags(const berth_value *value);

/* ---- walking ---- */

/*
 * Where a walk stands.
 * Lifetime: valid during the call that gets it.
 */
typedef struct berth_walk berth_walk;
struct berth_walk {
    const char *(*path)(const berth_walk *walk); /* see berth_walk_path */
};

/*
 * The path of the value that the walk stands at, as berth_find takes it: "['model'][0].__dict__".
 * Lifetime: the text is valid until the function of the walker returns.
 * Returns: the path; "" for the root; "..." if it is longer than 16 MiB.
 */
static inline const char *berth_walk_path(const berth_walk *walk)
{
    return walk->path(walk);
}

/*
 * A function of a walker.
 * Returns: 0: go on; another number: end the walk with this result.
 */
typedef int (*berth_walk_function)(void *context, const berth_walk *walk, const berth_value *value);

/* What `enter` returns to pass over all that is inside the value. */
#define BERTH_WALK_SKIP 0x7fffffff

/* Flags of a walker. */
#define BERTH_WALK_ITEMS 1u /* only items of containers: no attributes, no parts of tensors */

/* What a walk calls. Each function may be NULL. */
typedef struct berth_walker {
    uint32_t flags;            /* 0 or BERTH_WALK_ITEMS */
    berth_walk_function enter; /* at a value, the first time; what is inside follows */
    berth_walk_function leave; /* after all that is inside; not after BERTH_WALK_SKIP */
    berth_walk_function alias; /* at a value that was entered before; it is not entered again */
    void *context;             /* for the functions */
    uint64_t reserved[2];      /* 0 */
} berth_walker;

/*
 * Walks all values under `value`, depth first and in order: items of containers (keys of dicts are
 * not walked), the parts of sparse, nested and quantized tensors, then what berth_value_part gives,
 * but the TYPE.
 * Values that have no identity (None, numbers) are entered wherever they occur.
 *
 * Nothing recurses: values may be nested as deep as a file can hold them. Time is in proportion to
 * the values, and to the lengths of the paths that the functions request.
 * Parameters: value: where the walk begins; it is the first value to be entered. walker: is read at
 * the start.
 * Lifetime: the values stay their tree's. The functions must not change the tree.
 * Returns: 0; or what a function returned to end the walk.
 * Errors: BERTH_E_ARGUMENT: the value or the walker is NULL. BERTH_E_MEMORY.
 * Threads: several walks may run at once, as long as no thread changes the tree.
 */
BERTH_API int berth_value_walk(const berth_value *value, const berth_walker *walker,
                               berth_error *error);

/* ===================================================================== */
/*  Saving                                                               */
/* ===================================================================== */

/*
 * What berth_save does with its path.
 *
 * Path: symbolic links are followed. A save refuses what could not be opened for writing (a
 * read-only file, a folder), and what the rename would refuse: in a sticky or append-only folder,
 * under a mount, a device. A path such as /dev/fd/3 that leads to a file without a name
 * (memfd_create, O_TMPFILE, removed) is written in place; a failure leaves there what was
 * written, so never save values to such a file that they are mapped from. Where there is no
 * rename: save.replace in berth/config.h.
 *
 * Rights: the new file has owner, group, mode, ACL, security label and user.* attributes of the
 * file that it replaces (but no set-id bits, and no checksums of the old bytes), before the first
 * byte is written. So nobody can read or write it who could not read or write the old file. What
 * this process may not give to it (another owner, a group it is not in) is passed on by an ACL, or
 * is left out, and the log reports that. Where the old owner could lose access, the save is
 * refused (EPERM). A new file has what the umask and an ACL of its folder leave, of that what
 * save.readers says.
 *
 * Temporary: until the end, the bytes are in a file beside the path, ".berth-<16 hex
 * digits>-<0 to 15>.tmp". A failure leaves none. If a save was killed, the next save of the same
 * path removes its temporary, if that save certainly is dead: same host, same container, no such
 * process. berth_clean_temporaries removes others.
 */

/* ---- other targets ---- */

/*
 * A descriptor at its current position, in order, so that pipes and sockets will do. The save
 * neither closes nor syncs it. A failure leaves what was written. Never save values to the file
 * that they are mapped from. SIGPIPE is the caller's to ignore.
 */
static inline berth_target berth_to_fd(int fd)
{
    const berth_target target = {BERTH_TARGET_FD, fd, NULL, NULL, NULL, NULL, {0}};
    return target;
}

/*
 * New memory. When the save succeeds, *bytes is the caller's, to be freed by berth_free. Until
 * then, and if it fails, *bytes is NULL and *nbytes 0.
 */
static inline berth_target berth_to_memory(void **bytes, size_t *nbytes)
{
    const berth_target target = {BERTH_TARGET_MEMORY, -1, NULL, bytes, nbytes, NULL, {0}};
    return target;
}

/* What suits a sink. */
typedef struct berth_sink_need {
    uint64_t chunk_nbytes; /* is written at a time, at multiples of it in the file: 4096 or more;
                              0: any. io.chunk_nbytes counts only where there is no place */
    uint32_t n_threads;    /* unless io.threads is set; 0: any */
    uint32_t n_chunks;     /* that the sink holds for each thread, at most: io.memory_nbytes limits
                              the number of threads by it */
    uint64_t reserved[4];  /* 0 */
} berth_sink_need;

/*
 * What a sink can do beside writing; each may be NULL. They are called for saves, and not for
 * berth_joint_send, and must live as long as the save.
 */
typedef struct berth_sink_steps {
    /* The file is planned, and has nbytes. *need is all zeros. On the thread that begins the save.
     */
    int (*begin)(void *context, uint64_t nbytes, berth_sink_need *need);
    /* Memory for bytes of one chunk, which are made there and then written from there, so that the
       sink need not copy them, but the few that waited for a checksum: those come from elsewhere.
       It stays until all of the chunk is written. NULL: there is none: the save fails (ENOMEM).
       From several threads. Not called for tensors on devices, nor without a chunk_nbytes. */
    void *(*place)(void *context, uint64_t offset, size_t nbytes);
    /* The CRC-32 of what is written next, where place is called, so that the sink need not sum it.
       It is of the bytes as they were read: another one if a tensor changes while it is copied. On
       the thread that writes them. */
    void (*sum)(void *context, uint64_t offset, size_t nbytes, uint32_t crc32);
    /* All is written, and the save cannot be cancelled any more: it counts now. Of a job on its
       thread. */
    int (*finish)(void *context);
    /* The save has failed after begin: in this, or later. Once, when nothing is written any more,
       on the thread that found it. */
    void (*abort)(void *context);
} berth_sink_steps;

/*
 * Frees the memory of a save to berth_to_memory.
 * Parameters: bytes: NULL: does nothing.
 * Threads: any.
 */
BERTH_API void berth_free(void *bytes);

/* ---- records ---- */

/*
 * One record of an archive.
 * Lifetime: if Berth returned it, its text lives as long as the archive or plan.
 */
typedef struct berth_record {
    const char *name; /* without the top folder: "data/3" */
    uint64_t nbytes;
    uint64_t header_offset; /* of the local header */
    uint64_t offset;        /* of the data */
    uint32_t crc32;         /* 0: not computed (or empty) */
    uint16_t method;        /* 0 stored, 8 deflated */
    uint64_t reserved[2];
} berth_record;

/* One record to be written. */
typedef struct berth_new_record {
    const char *name; /* without the top folder */
    uint64_t nbytes;
    const void *data; /* nbytes bytes; or NULL, then: */
    /* Fills the buffer with bytes [offset, offset + nbytes) of the record. Returns 0 or an errno
       value. Called from several threads at once. */
    int (*read)(void *context, void *buffer, size_t nbytes, uint64_t offset);
    void *context;
    bool no_crc32; /* write 0 for this record's CRC even when save.compute_crc32 is on */
    /* The CRC that the bytes must have: other bytes fail the save (BERTH_E_CHECKSUM). 0: not
       known. Compared where CRCs are computed. */
    uint32_t crc32;
    const berth_storage *storage; /* instead of data and read: all of its nbytes bytes; its tree
                                     must live as long as `data`. So a record comes from a device */
    uint64_t reserved[3];         /* 0 */
} berth_new_record;

/* A flag of berth_of_records: the archive has these records only; Berth adds none. */
#define BERTH_RECORDS_COMPLETE 1u
/*
 * A flag of berth_of_records: Berth adds `byteorder` behind `version`, not in front of the
 * storages.
 * Source: torch.save(_disable_byteorder_record=True).
 */
#define BERTH_RECORDS_BYTEORDER_LAST 2u
/*
 * A flag of berth_of_records: no archive, but a file of any format: the bytes of the records, one
 * after the other. Their names appear in messages only. What berth_save says about paths, rights
 * and durability holds for it too.
 */
#define BERTH_RECORDS_PLAIN 4u

/*
 * Records, for a caller with its own pickler. records[0] is "data.pkl", the rest "data/<key>" or
 * anything else. Unless `flags` has BERTH_RECORDS_COMPLETE or BERTH_RECORDS_PLAIN, the save adds
 * `.format_version`, `.storage_alignment`, `byteorder`, `version` and `.data/serialization_id`
 * where PyTorch has them. Then save.byteorder must be this machine's, because records are written
 * as they are. A given
 * `.storage_alignment` must be equal to save.storage_alignment.
 * Parameters: flags: BERTH_RECORDS_COMPLETE, _BYTEORDER_LAST or _PLAIN.
 */
static inline berth_content berth_of_records(const berth_new_record *records, size_t n_records,
                                             uint32_t flags)
{
    const berth_content content = {
        BERTH_CONTENT_RECORDS, flags, NULL, records, n_records, NULL, {0}};
    return content;
}

/* ---- safetensors ---- */

/* A flag of berth_of_safetensors: leave out what the format cannot hold, instead of refusing it. */
#define BERTH_TENSORS_ONLY 1u
/* A flag of berth_of_safetensors: write a tensor that has several names once for each name. */
#define BERTH_COPY_TIES 2u

/*
 * A safetensors file. Each tensor is written contiguous, under the name that berth_tensor_at gives
 * it. Of tensors that are one (the same elements of one storage) the first by name is written, and
 * __metadata__ has a text from each other name to that one, as the safetensors package writes tied
 * tensors; Berth reads them as tied with load.tied_names.
 * Parameters: value: a dict of tensors, or any value that holds some. metadata: a dict of texts for
 * __metadata__, which may be empty; None (berth_make_none): the file has none, but for ties; NULL:
 * {"format": "pt"}, which some readers require. flags: BERTH_TENSORS_ONLY, BERTH_COPY_TIES.
 * Errors: of the save: BERTH_E_UNSUPPORTED: the format cannot hold a value, or a dtype, or the
 * header would have more than 100,000,000 bytes; the message names the value. BERTH_E_UNAVAILABLE:
 * Berth was built without jansson.
 * Source: https://huggingface.co/docs/safetensors. The bytes are those of its save_file.
 */
static inline berth_content berth_of_safetensors(const berth_value *value,
                                                 const berth_value *metadata, uint32_t flags)
{
    const berth_content content = {BERTH_CONTENT_SAFETENSORS, flags, value, NULL, 0, metadata, {0}};
    return content;
}

/* ---- jobs ---- */

/*
 * How far a job is.
 * Parameters: done_nbytes: bytes written, counted about ten times a second. total_nbytes: of the
 * whole file. Either may be NULL. Both are 0 for NULL as job.
 * Threads: any.
 */
BERTH_API void berth_job_progress(berth_job *job, uint64_t *done_nbytes, uint64_t *total_nbytes);

/*
 * Asks the job to stop, and returns at once. No new write begins, and the job ends with
 * BERTH_E_CANCELLED.
 * Returns: true: the path keeps its old file. False: too late, the new file takes its place, or
 * all is written to the target. Later calls return the same.
 * Threads: any, and the job's own callbacks.
 */
BERTH_API bool berth_job_cancel(berth_job *job);

/* ---- plans ---- */

/*
 * What a save would write, before a byte is written. Immutable.
 * Threads: any.
 */
typedef struct berth_plan berth_plan;

/* What a plan is, in numbers. */
typedef struct berth_plan_info {
    uint64_t nbytes;  /* exact size of the file */
    size_t n_records; /* for berth_plan_at */
    uint64_t reserved[4];
} berth_plan_info;

/*
 * Plans what berth_save_to would write.
 * Parameters: target: only the name of its path counts; NULL: "archive". info: NULL: not wanted.
 * Lifetime: the plan is the caller's until berth_plan_free. It does not need the value any more.
 * Returns: NULL on failure.
 * Threads: any.
 */
BERTH_API BERTH_MUST_CHECK berth_plan *berth_plan_new(const berth_target *target,
                                                      const berth_content *content,
                                                      const berth_params *params,
                                                      berth_plan_info *info, berth_error *error);

/*
 * Frees a plan.
 * Parameters: plan: NULL: does nothing.
 * Threads: no other thread may use it any more.
 */
BERTH_API void berth_plan_free(berth_plan *plan);

/*
 * Fills *record with record i in the file's order. Its crc32 is 0: no byte was read yet.
 * Lifetime: its name lives as long as the plan.
 * Errors: BERTH_E_NOT_FOUND: there is no record i. BERTH_E_ARGUMENT: NULL.
 * Threads: any.
 */
BERTH_API int berth_plan_at(const berth_plan *plan, size_t i, berth_record *record);

/*
 * Renders a range of the planned file without its storages: where their bytes will be, the buffer
 * gets zeros, and so it does for CRCs; the id is the digit 0. With the bytes of the storages from
 * anywhere, such as other files, this makes a source that berth_open_source opens: the file that
 * berth_save_to would write, without writing it.
 * Parameters: plan: of a value or of safetensors; storages may be BERTH_ELSEWHERE. buffer: nbytes
 * bytes. offset: in the file.
 * Errors: BERTH_E_ARGUMENT: the plan is NULL or of records, or the range is not inside the file.
 * BERTH_E_MEMORY.
 * Threads: any.
 */
BERTH_API int berth_plan_read(const berth_plan *plan, void *buffer, size_t nbytes, uint64_t offset,
                              berth_error *error);

/* ---- temporary files that were left behind ---- */

/* Whether the save that owns a temporary file is still running. */
typedef enum berth_temporary_state {
    BERTH_TEMPORARY_UNKNOWN = 0, /* it is of another host or container, or older than the last
                                    start of this host, or its file system keeps no owner */
    BERTH_TEMPORARY_ALIVE = 1,
    BERTH_TEMPORARY_DEAD = 2
} berth_temporary_state;

/*
 * One temporary file.
 * Lifetime: the struct and its texts are valid during the callback only.
 */
typedef struct berth_temporary {
    const char *name;
    uint64_t nbytes;
    double age_seconds; /* since it was last written to */
    berth_temporary_state state;
    const char *owner; /* "1 <boot id> <pid namespace> <time namespace> <pid> <start>"; "": none */
    bool removed;
    const berth_error *error; /* why it could not be removed; NULL: removed, or not tried */
} berth_temporary;

/* Receives each temporary file, on the thread that called berth_clean_temporaries. */
typedef void (*berth_temporary_function)(void *context, const berth_temporary *temporary);

/* For berth_clean_temporaries: remove files that are dead, and unknown ones older than
 * min_age_seconds. */
#define BERTH_CLEAN_REMOVE 1u

/*
 * Reports the temporary files of saves in a folder, in no order. It never removes one that is known
 * to be alive.
 * Parameters: flags: 0 or BERTH_CLEAN_REMOVE. min_age_seconds: choose an age that no save on
 * another host takes between two writes; a day is safe. If the file of a running save is removed
 * all the same, that save fails and its path keeps the old file.
 * Errors: BERTH_E_SYSTEM, BERTH_E_NOT_FOUND: the folder cannot be listed.
 * Threads: any. `report` is called on the calling thread.
 */
BERTH_API int berth_clean_temporaries(const char *folder, uint32_t flags, double min_age_seconds,
                                      berth_temporary_function report, void *context,
                                      berth_error *error);

/* ===================================================================== */
/*  Loading                                                              */
/* ===================================================================== */

/* ---- other sources ---- */

/* An open file. The descriptor is duplicated, not kept; its position does not matter. */
static inline berth_source berth_from_fd(int fd)
{
    const berth_source source = {BERTH_SOURCE_FD, fd, NULL, NULL, 0, NULL, NULL, NULL, {0}};
    return source;
}

/* Memory. The bytes must live, unchanged, until what was opened is closed. */
static inline berth_source berth_from_memory(const void *bytes, size_t nbytes)
{
    const berth_source source = {
        BERTH_SOURCE_MEMORY, -1, NULL, bytes, nbytes, NULL, NULL, NULL, {0}};
    return source;
}

/*
 * A function of the caller. Its context must live until what was opened is closed.
 *
 * Two members of the source may be set afterwards. fd, above 0: the function reads this regular
 * file, as pread does: then short reads cost little, and the system is told which are next. It must
 * stay open until what was opened is closed. path: what the command `berth` takes in place of a
 * file to read the same, such as a URL: messages that propose such a command have it. Parameters:
 * read: fills the buffer with bytes [offset, offset + nbytes) of the source. Returns 0 or an errno
 * value. name: for messages; NULL: "source".
 * Threads: `read` is called from several at once.
 */
static inline berth_source berth_from_function(int (*read)(void *context, void *buffer,
                                                           size_t nbytes, uint64_t offset),
                                               void *context, uint64_t nbytes, const char *name)
{
    const berth_source source = {
        BERTH_SOURCE_FUNCTION, -1, NULL, NULL, nbytes, name, read, context, {0}};
    return source;
}

/*
 * Opens a checkpoint from any source. All else is as for berth_open.
 * Lifetime: *source is copied. The memory or context in it must live until berth_close.
 * Errors: BERTH_E_CALLBACK: the function of the source failed. BERTH_E_ARGUMENT: no source, or one
 * of an invalid kind.
 */
BERTH_API BERTH_MUST_CHECK int berth_open_source(const berth_source *source,
                                                 const berth_params *params,
                                                 berth_checkpoint **checkpoint, berth_error *error);

/*
 * Closes the descriptors of a checkpoint whose memory is used further: maps and what was read stay
 * until berth_close, also without the file. So a process can hold more maps than descriptors. Does
 * nothing where there is no descriptor, or while a prefetch by load.prefetch reads the file.
 *
 * What was not loaded cannot be loaded any more: BERTH_E_ARGUMENT.
 * Parameters: checkpoint: NULL: does nothing.
 * Threads: no other thread may call a function with the checkpoint meanwhile. Memory may be used.
 */
BERTH_API void berth_close_descriptors(berth_checkpoint *checkpoint);

/* ---- facts ---- */

/*
 * What the file says about itself.
 * Lifetime: texts and the dict live as long as the checkpoint.
 */
typedef struct berth_info {
    const char *archive;       /* the folder in the archive; "" if it is no zip */
    const char *container;     /* "zip"; "legacy": from before PyTorch 1.6; "pt2"; "safetensors" */
    int64_t format_version;    /* 0: no such record */
    int64_t storage_alignment; /* 0: no such record */
    const char *byteorder;     /* "little" or "big" */
    bool byteorder_recorded;   /* false: it is not recorded, load.endianness says it */
    uint64_t nbytes;           /* of the file */
    uint64_t storages_nbytes;
    size_t n_records;         /* of a zip; the other formats have none */
    size_t n_unknown_records; /* neither PyTorch's own nor a storage that is used */
    size_t n_storages;
    size_t n_tensors;
    size_t n_crc32; /* records with a CRC */
    bool calculated_offsets;
    bool repacked;     /* the file says that its offsets can be calculated, but it was zipped again:
                          readers that calculate them misread it. Saving its values again mends it */
    size_t n_deflated; /* storages that are compressed: each is inflated when it is asked for, as a
                          whole (load.inflate). Saving the values again mends it */
    uint64_t behind_nbytes; /* of the legacy format: bytes of further objects that torch.save wrote
                               to the same file. Berth reads the first, as torch.load(path) does */
    const berth_value *metadata; /* of safetensors: the texts of __metadata__, a dict; NULL: the
                                    file has none */
    uint64_t reserved[5];
} berth_info;

/*
 * Fills *info. If load.check=none left the directory unread, it is read now.
 * Errors: as for berth_open with load.check=directory.
 * Threads: any.
 */
BERTH_API int berth_get_info(berth_checkpoint *checkpoint, berth_info *info, berth_error *error);

/*
 * Checks the indices of all sparse tensors in a value, as torch.load does while
 * torch.sparse.check_sparse_tensor_invariants is enabled. berth_open with load.check=data does this
 * for the whole checkpoint, and so does berth_verify. A program that opens with another level and
 * uses the indices as positions calls this first: a wrong index is a position outside the values.
 * - COO: each index is from 0 to the size of its dimension minus 1. If the tensor is marked as
 *   coalesced (BERTH_COALESCED), they are sorted, and none occurs twice.
 * - CSR, BSR, in each batch: crow_indices begin with 0 and end with the number of col_indices;
 *   neighbours differ by 0 to the number of columns (of blocks). col_indices are from 0 to that
 *   number minus 1, and in each row sorted and distinct. Both have one dtype, and the stride 1 in
 *   the last dimension. CSC and BSC: the same with ccol_indices, row_indices, columns and rows.
 *
 * Where PyTorch is lax, so is this: in a COO tensor without sparse dimensions nothing is checked,
 * in a CSR matrix without rows only the range of col_indices.
 *
 * Reads the indices of a tensor once, through a buffer of 1 MiB at most; deflated ones are inflated
 * as for berth_tensor_data. The cost is known before the first read: each element that is read,
 * gaps of up to 63 between indices included, and 16 more for each beginning of a read. Along
 * dimensions of the stride 0 only the first index is read. All that may cost 4 for each byte of the
 * file's storages, and 2^18.
 * Parameters: value: a sparse tensor, or what holds some: berth_root(checkpoint) for all. params:
 * only its progress is used; may be NULL. Progress counts that cost, as int64.
 * Returns: 0: all are good, or they are meta tensors, or there are none.
 * Errors: BERTH_E_TENSOR: an index is wrong; the message has the tensor, its layout, the position,
 * the value and what it must be. BERTH_E_UNSUPPORTED: they are views that repeat the elements of
 * the file's storages so often that checking them would cost more. BERTH_E_ARGUMENT: a sparse
 * tensor is of another checkpoint. BERTH_E_CANCELLED. Otherwise as for berth_tensor_read.
 * Threads: any.
 */
BERTH_API BERTH_MUST_CHECK int berth_tensor_check_indices(berth_checkpoint *checkpoint,
                                                          const berth_value *value,
                                                          const berth_params *params,
                                                          berth_error *error);

/* ---- storages: which, how, and what happened to them ---- */

/*
 * Iterates over the storages of a checkpoint, in the order in which its values name them. Views of
 * other storages, which only the legacy format has, are left out.
 * Parameters: previous: NULL: start.
 * Returns: the next storage; NULL after the last.
 * Threads: any.
 */
BERTH_API const berth_storage *berth_storage_next(const berth_checkpoint *checkpoint,
                                                  const berth_storage *previous);

/* The address of a storage's first byte. All else is as for berth_tensor_data. */
static inline const void *berth_storage_data(berth_checkpoint *checkpoint,
                                             const berth_storage *storage, berth_error *error)
{
    const berth_storage_info *info = berth_storage_get_info(storage);
    const int64_t shape = info ? (int64_t)info->nbytes : 0, stride = 1;
    berth_tensor bytes = {BERTH_UINT8, 1, &shape,
                          &stride,     0, (berth_storage *)(uintptr_t)storage,
                          NULL,        0, BERTH_NOT_QUANTIZED,
                          0,           0, NULL,
                          NULL,        0};
    return berth_tensor_data(checkpoint, &bytes, error);
}

/* How a storage becomes memory: the values of load.method. */
typedef enum berth_load_method {
    BERTH_LOAD_AUTO = 0, /* in a rule: load.method decides */
    BERTH_LOAD_MAP = 1,
    BERTH_LOAD_READ = 2,
    BERTH_LOAD_DIRECT = 3
} berth_load_method;

/* As a device: the device or the host where the storage was when it was saved. */
#define BERTH_DEVICE_SAVED "saved"

/* How and where one storage is loaded. */
typedef struct berth_storage_choice {
    berth_load_method method;
    const char *device; /* "cpu", "cuda:0", ... or BERTH_DEVICE_SAVED */
    uintptr_t address;  /* memory of the caller's on that device; 0: berth_load allocates some, and
                           berth_close frees it */
    uint64_t nbytes;    /* of that memory: at least the storage's size */
    void *ready; /* an event of that device, recorded after the last work that uses the memory;
                    NULL: nothing uses it. Not used without an address */
    uint64_t reserved[2];
} berth_storage_choice;

/*
 * A rule for storages. It applies to a storage if all its conditions hold; zeros always hold.
 *
 * `choose`, if it is not NULL, is called once for each storage to which the rule applies. It gets
 * the method and the device of the rule in *choice, and may change everything in it. It returns 0,
 * or an errno value, which makes berth_set_storage_rules fail. Texts in *choice must be valid until
 * the next call.
 * Threads: `choose` is called on the thread that calls berth_set_storage_rules, without a lock.
 */
typedef struct berth_storage_rule {
    const char *pattern;      /* glob: a name of one of the tensors that view the storage */
    const char *location;     /* glob: where it was when it was saved, "cuda*" */
    uint64_t min_nbytes;      /* its smallest size */
    uint64_t max_nbytes;      /* its largest size; 0: no limit */
    berth_load_method method; /* BERTH_LOAD_AUTO: load.method decides */
    const char *device;       /* "cpu", "cuda:0", ... or BERTH_DEVICE_SAVED; NULL: "cpu" */
    int (*choose)(void *context, const berth_storage *storage, berth_storage_choice *choice);
    void *context;
    uint64_t reserved[2]; /* 0 */
} berth_storage_rule;

/*
 * Chooses how and where each storage is loaded: by the first rule that applies. Storages without a
 * rule follow load.method and go to the host. Nothing is read; devices are opened at once. Storages
 * that are loaded already, or being loaded, stay as they are. In legacy files a storage can be a
 * view of another one; then it follows that one.
 *
 * So one load can mix methods and places: map what the processor needs, read directly what goes
 * elsewhere, and put what was on any GPU on this one:
 *
 *     const berth_storage_rule rule = {.location = "cuda*", .device = "cuda:0"};
 *     berth_set_storage_rules(model, &rule, 1, &error);
 *     berth_load(model, NULL, NULL, &error);
 *     berth_tensor_device_address(model, weight, &address, &error);
 *
 * With load.mmap=off nothing is mapped. A storage that cannot use its method is read, and
 * berth_storage_get_stats says why. On a device BERTH_LOAD_MAP works as BERTH_LOAD_READ.
 * Parameters: rules: NULL if n_rules is 0.
 * Lifetime: rules and their texts are the caller's, until the function returns. Memory at an
 * `address` is the caller's to free, after failures too; it must be there until berth_close. The
 * event `ready` must live, and not be recorded again, until the load of the storage
 * (berth_load, berth_tensor_device_address) has returned 0, or until berth_close; after a failed
 * load the next one waits for it again.
 * Errors: BERTH_E_ARGUMENT: invalid method or device; or the memory at an address is too small, or
 * not that device's. BERTH_E_DEVICE: a device cannot be opened. BERTH_E_CALLBACK: a function
 * failed. After an error nothing has changed.
 * Threads: any.
 */
BERTH_API int berth_set_storage_rules(berth_checkpoint *checkpoint, const berth_storage_rule *rules,
                                      size_t n_rules, berth_error *error);

/* One destination of berth_load_into. Set either storage or tensor. */
typedef struct berth_destination {
    const berth_storage *storage; /* all of its bytes */
    const berth_tensor *tensor;   /* its elements in row-major order, whatever the strides, as they
                                     are stored: no conjugate or negative bit is applied */
    void *address;                /* the caller's memory, on the host */
    uint64_t nbytes;              /* size of that memory: at least what goes there */
    uint64_t is_new;              /* 1: it was mapped for this, and nobody has touched it: its pages
                                     are chosen by io.large_pages; 0: they are as they are */
    uint64_t reserved[1];         /* 0 */
} berth_destination;

/*
 * Reads storages and tensors into the caller's memory. The storages do not become memory of the
 * checkpoint. io.threads workers read neighbours in the file together. Reads go past the page cache
 * with load.method=direct, or with `auto` if 64 MiB or more are cold on a disk. They go straight to
 * the caller's memory if address and file offset are equal modulo the block size, else through
 * buffers of at most io.memory_nbytes. Rules of berth_set_storage_rules do not apply. The bytes are
 * in this machine's order. Elements of a tensor are those that are stored: its conjugate and
 * negative bits (BERTH_CONJ, BERTH_NEG) are not applied; berth_tensor_read applies them.
 * Parameters: destinations: n of them. Two may have the same source; their memory must not overlap.
 * params: as for berth_load.
 * Lifetime: the memory is the caller's. It is written until the function returns.
 * Errors: BERTH_E_ARGUMENT: a destination has neither or both of storage and tensor, is of another
 * checkpoint, or has too little memory; then nothing was read. BERTH_E_CHECKSUM: with
 * load.check=data, a CRC does not match. BERTH_E_CANCELLED: params->progress cancelled. After an
 * error the content of the memory is undefined.
 * Threads: any.
 */
BERTH_API BERTH_MUST_CHECK int berth_load_into(berth_checkpoint *checkpoint,
                                               const berth_destination *destinations, size_t n,
                                               const berth_params *params, berth_error *error);

/*
 * What happened to one storage; for a view, to the storage that it views. moved_nbytes are those of
 * its own bytes that were read for it; 0 if it is mapped.
 * Threads: any.
 */
BERTH_API int berth_storage_get_stats(berth_checkpoint *checkpoint, const berth_storage *storage,
                                      berth_storage_stats *stats, berth_error *error);

/* ---- verification ---- */

/*
 * What berth_verify found in one record. It is told of each in the file's order, on the calling
 * thread, after all bytes were read: by io.threads workers, every byte once, with buffers of at
 * most io.memory_nbytes; data.pkl, the directory and the indices of sparse tensors twice. A record
 * that the disk cannot read (EIO, ENODATA, EILSEQ) is bad, with that system_errno; but not in the
 * legacy format, nor if it holds the directory. If a read fails and its repetition succeeds, that
 * is still an error.
 * Lifetime: everything is valid during the callback only.
 */
struct berth_record_verdict {
    const char *name; /* without the archive's folder. Of a safetensors file: the tensor's; of the
                         legacy format: the storage's key */
    uint64_t offset;  /* of its data */
    uint64_t nbytes;
    berth_crc_verdict crc32;
    const berth_error *bad; /* NULL: it is good. The message does not name the file */
};

/*
 * Called for a class or function that a pickle of a file names; once for each.
 * Parameters: is_allowed: it is one of those that a checkpoint may name, whatever the options say.
 * Lifetime: the texts are valid during the callback. They have at most 100 bytes each, and "?" for
 * each character that is not printable; a text "?" is a name that could not be followed.
 */
typedef void (*berth_global_function)(void *context, const char *module, const char *name,
                                      bool is_allowed);

/*
 * Lists all classes and functions that the pickles of a file name, of any pickle protocol, refused
 * or not, in the order in which they are met. Nothing of them is made or looked up. Of a zip: all
 * records *.pkl; if its directory is damaged, the first record. A file without a pickle has none.
 * At most 4,096 different ones are reported. This is no verdict: a file that berth_verify finds
 * good is good, also if this cannot read it a second time.
 * Returns: 0, also if the file is damaged; or that it cannot be read.
 * Threads: any.
 */
BERTH_API BERTH_MUST_CHECK int berth_list_globals(const berth_source *source,
                                                  berth_global_function report, void *context,
                                                  berth_error *error);

/* ---- records: the container level ---- */

typedef struct berth_archive berth_archive; /* an opened file, its records only */

/*
 * What an archive is.
 * Lifetime: the text lives as long as the archive.
 */
typedef struct berth_archive_info {
    const char *name; /* the top folder, which all records are in */
    size_t n_records;
    uint64_t reserved[4];
} berth_archive_info;

/*
 * Opens the records of an archive, TorchScript and torch.package too, without looking into its
 * pickle. Reads the directory, and checks headers as load.check says; with load.check=directory it
 * reads no header, if all are where the layout puts them.
 * Parameters: info: what it is; NULL: not wanted.
 * Lifetime: *archive is the caller's until berth_archive_close; NULL on failure. *source is copied;
 * the memory or context in it must live until berth_archive_close.
 * Errors: as for berth_open.
 * Threads: any. Several threads may use one archive.
 */
BERTH_API BERTH_MUST_CHECK int berth_archive_open(const berth_source *source,
                                                  const berth_params *params,
                                                  berth_archive **archive, berth_archive_info *info,
                                                  berth_error *error);

/*
 * Closes an archive. NULL: does nothing.
 * Threads: no other thread may use it any more.
 */
BERTH_API void berth_archive_close(berth_archive *archive);

/*
 * Record i, in the directory's order.
 * Errors: BERTH_E_NOT_FOUND: there is no record i.
 * Threads: any.
 */
BERTH_API int berth_archive_at(const berth_archive *archive, size_t i, berth_record *record);

/*
 * The record of a name.
 * Parameters: name: without the archive's folder.
 * Errors: BERTH_E_NOT_FOUND: there is no record of that name.
 * Threads: any.
 */
BERTH_API BERTH_MUST_CHECK int berth_archive_find(const berth_archive *archive, const char *name,
                                                  berth_record *record, berth_error *error);

/*
 * Reads bytes [offset, offset + nbytes) of a record, inflated if it is deflated. Long ranges are
 * read by io.threads workers.
 * Errors: BERTH_E_ARGUMENT: the range is not inside the record. Otherwise as for berth_tensor_read.
 */
BERTH_API BERTH_MUST_CHECK int berth_archive_read(berth_archive *archive,
                                                  const berth_record *record, void *buffer,
                                                  size_t nbytes, uint64_t offset,
                                                  berth_error *error);

#ifdef __cplusplus
}
#endif

#endif /* BERTH_MORE_H */
