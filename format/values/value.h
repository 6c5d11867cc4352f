/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The tree of values behind berth.h: the pickle reader builds it, the writer walks it. P3 limits
 * its memory: a node is a few words, REDUCE shares text and shapes, and nothing recurses.
 */
#ifndef BTH_FORMAT_VALUES_VALUE_H
#define BTH_FORMAT_VALUES_VALUE_H

#include "berth.h"
#include "berth/more.h"

/* Bytes that tensors view: of the caller (`data`), or of a file; then load/ sets `read`. */
struct berth_storage {
    berth_tree *tree;
    union {
        berth_storage_info info;
        struct { /* the same members */
            const char *key;
            const char *location;
            berth_dtype dtype; /* of the storage class */
            uint64_t nbytes;   /* as the pickle claims: numel x item, overflow-checked */
        };
    };
    size_t index;     /* position among the tree's storages */
    const void *data; /* the bytes; NULL: use read */
    /* Fills buffer from the storage's bytes, in this machine's byte order for `dtype`. */
    int (*read)(const berth_storage *storage, void *buffer, size_t nbytes, uint64_t offset,
                berth_error *error);
    /* The same for elements [first, first + n) of a tensor, in row-major order. */
    int (*read_elements)(const berth_storage *storage, const berth_tensor *tensor, int64_t first,
                         int64_t n, void *buffer, berth_error *error);
    void *context;   /* of both */
    uint64_t offset; /* of the data in the file it was loaded from, or BERTH_NO_OFFSET */
    /* A view of another storage (legacy format): root and byte offset in it. */
    const berth_storage *root;
    uint64_t root_offset;
    /* On a device (io/device/device.h), from root_offset on. */
    const struct bth_device_memory *device;
    berth_dtype element; /* dtype of the first tensor: byte order of an untyped storage */
    char short_key[12];  /* what `key` points to, if it fits */
};

/* Sets the tree's error, unless it has one. Returns its code; BERTH_E_ARGUMENT if tree is NULL. */
int bth_tree_fail(berth_tree *tree, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* The same in functions that return a pointer or a bool: NULL, or false. */
#define BTH_TREE_REFUSE(...) ((void)bth_tree_fail(__VA_ARGS__), NULL)

/* The name of a kind with its article: "an int", "a tensor", "None". */
const char *bth_kind_phrase(berth_kind kind);

/* Memory of the tree, freed with it. NULL: the tree has failed. */
void *bth_tree_allocate(berth_tree *tree, size_t nbytes);
/* Sets memory to use before the tree allocates any. It must live as long as the tree. Once. */
void bth_tree_set_spare_memory(berth_tree *tree, void *memory, size_t nbytes);

/* Like berth_storage_new, but the caller says how the bytes are read. */
berth_storage *bth_storage_new_without_data(berth_tree *tree, berth_dtype dtype, uint64_t nbytes,
                                            const char *location);
/* The storage that has the bytes. Adds to *offset the position of this storage in it. */
const berth_storage *bth_storage_resolve_view(const berth_storage *storage, uint64_t *offset);
/* All storages, in the order in which they were made. */
size_t bth_tree_n_storages(const berth_tree *tree);
berth_storage *bth_tree_storage(const berth_tree *tree, size_t i);
/* The storage of a key, made if there is none. If there is one, size and class must agree; not the
 * class if the storage is empty or the classes are uint8 and untyped (T3). */
berth_storage *bth_tree_find_or_add_storage(berth_tree *tree, const char *key, size_t key_nbytes,
                                            berth_dtype dtype, uint64_t nbytes,
                                            const char *location, size_t location_nbytes);
/* The storage of a key, or NULL. */
berth_storage *bth_tree_find_storage(const berth_tree *tree, const char *key, size_t key_nbytes);

/* ---- for the pickle reader ---- */

/* Appends n items to a LIST; sets n pairs, {key, value, key, value, …}, in any kind of dict;
 * appends items, or sets pairs, of a CALL. 0 or the tree's error. */
int bth_list_extend(berth_value *list, berth_value *const *items, size_t n);
int bth_dict_extend(berth_value *dict, berth_value *const *items, size_t n);
int bth_call_extend(berth_value *call, berth_value *const *items, size_t n, bool by_key);
/* The ints of a TUPLE, SIZE or LIST as an array, which is kept with the node. False: the tree has
 * failed, because an item is no int64 or the rank is above 64. */
bool bth_value_as_shape(berth_value *value, const int64_t **shape, int32_t *rank);

/* What REDUCE builds from an argument. So that memory stays linear (P3), text is decoded once and
 * shared, and a list or dict can be used only once. */
berth_value *bth_bytes_from_latin1(berth_tree *tree, berth_value *text);
berth_value *bth_bytearray_from_bytes(berth_tree *tree, berth_value *bytes); /* NULL: empty */
berth_value *bth_set_from_list(berth_tree *tree, berth_value *list);         /* LIST; NULL: empty */
berth_value *bth_counter_from_dict(berth_tree *tree, berth_value *dict);     /* DICT; NULL: empty */
berth_value *bth_ordered_dict_from_pairs(berth_tree *tree, berth_value *list); /* LIST of pairs */
berth_value *bth_size_from_tuple(berth_tree *tree, berth_value *tuple); /* shares the tuple */

/* Like berth_make_tensor and berth_make_sparse, but keep shape and stride, which are in the tree's
 * memory. */
berth_value *bth_tensor_adopt(berth_tree *tree, const berth_tensor *tensor);
berth_value *bth_sparse_adopt(berth_tree *tree, berth_layout_kind layout, const int64_t *shape,
                              int32_t rank, berth_value *const *parts, bool is_coalesced);

/* Like berth_make_storage, with a class of its own (T3). */
berth_value *bth_storage_value_new(berth_tree *tree, berth_storage *storage, berth_dtype dtype);

/* A named class or function, never called. An inert one can be a key, by identity. */
berth_value *bth_global_new(berth_tree *tree, const char *module, size_t module_nbytes,
                            const char *name, size_t name_nbytes, bool is_inert);
/* Inert: a tensor of an unknown class, a GLOBAL or a CALL. Its state is any value. */
berth_value *bth_inert_subclass_new(berth_tree *tree, berth_value *type, berth_value *tensor,
                                    berth_value *state);
/* Inert: callable(*arguments), with NEWOBJ if new_object. Its items are the arguments. */
berth_value *bth_call_new(berth_tree *tree, berth_value *callable, berth_value *arguments,
                          bool new_object);

/* ---- for the writer and walkers ---- */

/* Item i of any container (of a dict, the value), and key i of a dict; NULL: there is none. */
berth_value *bth_value_item(const berth_value *value, size_t i);
berth_value *bth_value_key(const berth_value *value, size_t i);
/* The content of the value; false or 0 for other kinds. */
bool bth_value_bool(const berth_value *value);
double bth_value_real(const berth_value *value); /* FLOAT, COMPLEX */
double bth_value_imaginary(const berth_value *value);
int bth_value_constant(const berth_value *value, berth_kind kind);

/* DTYPE; of a STORAGE, its class. */
static inline berth_dtype bth_value_as_dtype(const berth_value *value)
{
    return (berth_dtype)bth_value_constant(value, BERTH_KIND_DTYPE);
}

static inline berth_layout_kind bth_value_layout(const berth_value *value)
{
    return (berth_layout_kind)bth_value_constant(value, BERTH_KIND_LAYOUT);
}

/* The position of a str or int key in a dict, or SIZE_MAX. */
size_t bth_dict_find_text_position(const berth_value *dict, const char *text, size_t nbytes);
size_t bth_dict_find_int_position(const berth_value *dict, int64_t integer);
/* The tensor inside PARAMETER and SUBCLASS, or the value itself. */
const berth_value *bth_value_unwrap_tensor(const berth_value *value);
/* Whether PyTorch's _set_obj_state accepts it: None, a dict, or a pair of these. */
bool bth_value_can_be_state(const berth_value *value);
/* Whether no name in a state is the tensor's own (P5). If one is, writes which to `problem`. */
bool bth_state_attributes_are_allowed(const berth_value *state, char *problem,
                                      size_t problem_nbytes);
/* The tree a value was made in. */
berth_tree *bth_value_tree(const berth_value *value);
/* CALL: the tuple of its arguments. */
berth_value *bth_value_arguments(const berth_value *value);
/* CALL built by NEWOBJ. */
bool bth_value_is_new_object(const berth_value *value);
/* GLOBAL: module and name apart. */
void bth_value_global_module_and_name(const berth_value *value, const char **module,
                                      const char **name);
/* DEVICE: type and index (-1: none). */
const char *bth_value_device_type_and_index(const berth_value *value, int64_t *index);
/* The id of a node, below bth_tree_n_ids(tree): tables of nodes are arrays. NONE, BOOL, INT, FLOAT
 * and the empty tuple have none (SIZE_MAX): no pickler puts them into its memo. A tree has each
 * dtype, qscheme and layout once, as Python has. */
size_t bth_value_id(const berth_value *value);
size_t bth_tree_n_ids(const berth_tree *tree);

/* ---- arithmetic on tensors: bounds, overflow, strides, byte order (T1 to T5) ---- */

/* Checks that the storage holds every element (T1, T2, T4). BERTH_E_TENSOR if not. */
int bth_tensor_check(const berth_tensor *tensor, berth_error *error);
/* Bytes from the storage's start to the end of the last element; 0 for an empty tensor. False: it
 * overflows. Shape, stride and offset must be >= 0. */
bool bth_tensor_compute_end_in_storage(const berth_tensor *tensor, uint64_t *nbytes);
/* *offset: the byte of the first element in the storage. False: the element begins inside it. */
bool bth_tensor_begins_at_whole_byte(const berth_tensor *tensor, uint64_t *offset);
/* The storage that a tensor is saved on, and its offset there. A view of another storage (legacy
 * format) is saved as that storage, so that shared memory stays shared. Not for meta tensors. */
const berth_storage *bth_tensor_saved_storage(const berth_tensor *tensor, int64_t *storage_offset);
/* The product of the shape; false: it overflows. */
bool bth_shape_numel(const int64_t *shape, int32_t rank, int64_t *numel);
/* Row-major strides as PyTorch makes them: stride[i] = product of max(shape[j], 1), j > i;
 * INT64_MAX where that does not fit. */
void bth_contiguous_stride(const int64_t *shape, int32_t rank, int64_t *stride);
/* Copies elements [first, first + n) in row-major order from `base`, the storage's first byte. The
 * tensor has been checked, and an item holds one element. */
void bth_tensor_gather(const berth_tensor *tensor, const void *base, int64_t first, int64_t n,
                       void *out);
/* Applies the tensor's conjugate and negative bits to n elements. BERTH_E_UNSUPPORTED: its dtype
 * has no sign bit, or is not complex. */
int bth_tensor_resolve_bits(const berth_tensor *tensor, int64_t n, void *elements,
                            berth_error *error);

/* Bytes of the unit that a change of byte order reverses: complex64 4, bool 1. */
size_t bth_dtype_swap_nbytes(berth_dtype dtype);
/* Copies nbytes (a multiple of unit) reversing each unit of 1, 2, 4 or 8; in may equal out. */
void bth_swap_bytes(void *out, const void *in, size_t nbytes, size_t unit);

/* Elements an item holds: 2 for quint4x2, 4 for quint2x4, else 1. */
int bth_dtype_elements_per_item(berth_dtype dtype);
/* The name of its storage class, such as "FloatStorage"; NULL: UntypedStorage (v3). */
const char *bth_dtype_storage_class(berth_dtype dtype);
/* The class by which a tensor of this dtype names its storage; NONE: UntypedStorage. */
berth_dtype bth_dtype_to_storage_dtype(berth_dtype dtype);
/* Whether two classes are one to PyTorch, which treats an UntypedStorage as uint8 (T3). */
bool bth_storage_dtypes_are_compatible(berth_dtype a, berth_dtype b);
bool bth_dtype_is_quantized(berth_dtype dtype); /* qint8, quint8, qint32, quint4x2, quint2x4 */
bool bth_dtype_is_foreign(berth_dtype dtype);   /* no pickle names it: of safetensors alone */

/*
 * ---- the walk ----
 * Depth first, with a stack of its own, because a file can nest values as deep as memory allows
 * (P3). The walk returns children; its caller decides which to push.
 */

/* A step from a value to one that it holds: the number of an item, or of a part of a tensor (the
 * indices of a sparse one, the scales of a quantized one), or one of these. */
enum {
    BTH_STEP_LIST_ITEMS = UINT32_MAX - 4, /* the first: items have smaller numbers */
    BTH_STEP_DICT_ITEMS,
    BTH_STEP_INNER,
    BTH_STEP_STATE,
    BTH_STEP_NONE /* before the first */
};

/* Which children a walk returns. */
typedef enum bth_walk_edges {
    BTH_WALK_ITEMS,   /* items of containers */
    BTH_WALK_MEMBERS, /* items, then BTH_STEP_LIST_ITEMS to BTH_STEP_STATE; no parts of tensors */
    BTH_WALK_ALL,     /* the same, and the parts of tensors as items */
    BTH_WALK_MADE_OF  /* the values that a value was made of; these are older: no cycles */
} bth_walk_edges;

/* Small, because a value may be nested as deep as its pickle has bytes (P3). */
typedef struct bth_walk_frame {
    const berth_value *value;
    uint32_t step; /* to the child that was returned last */
    uint32_t note; /* the caller's; 0 at first */
} bth_walk_frame;

typedef struct bth_walk {
    bth_walk_edges edges;
    uint32_t n_items; /* of the value on top: */
    uint32_t stride;  /* every `stride`th of `items` is one */
    berth_value *const *items;
    bth_walk_frame *frames;
    size_t n_frames;
    size_t capacity;
    uint8_t *seen; /* bits by id */
} bth_walk;

/* Begins the children of a value. A walk begins as zeros and `edges`. */
int bth_walk_push(bth_walk *walk, const berth_value *value, berth_error *error);
/* Ends the children of the value on top. */
void bth_walk_pop(bth_walk *walk);
void bth_walk_free(bth_walk *walk);

/* The value of a step; NULL if there is none. */
const berth_value *bth_value_child_at_step(const berth_value *parent, uint32_t step);
/* Part i of a sparse, nested or quantized tensor, or of a value around one. */
const berth_value *bth_tensor_part(const berth_value *value, uint32_t i);

/* Memory for bth_walk_mark_if_new. */
int bth_walk_allocate_seen(bth_walk *walk, const berth_tree *tree, berth_error *error);
/* True if the value is seen for the first time, or has no id. */
bool bth_walk_mark_if_new(bth_walk *walk, const berth_value *value);
/* The next child that is no item. */
const berth_value *bth_walk_next_non_item(const bth_walk *walk, bth_walk_frame *frame);

/* The next child of the value on top, whose `step` then leads to it. NULL: pop the value. */
static inline const berth_value *bth_walk_next_child(bth_walk *walk)
{
    bth_walk_frame *frame = &walk->frames[walk->n_frames - 1];
    uint32_t step = frame->step == BTH_STEP_NONE ? 0 : frame->step + 1;
    if (step >= walk->n_items)
        return bth_walk_next_non_item(walk, frame);
    frame->step = step;
    return walk->items[(size_t)step * walk->stride];
}

/* Sets of kinds as bits. */
#define BTH_KIND(name) (UINT32_C(1) << BERTH_KIND_##name)

static inline bool bth_kind_is_tensor(berth_kind kind)
{
    return kind >= BERTH_KIND_TENSOR && kind <= BERTH_KIND_SUBCLASS;
}

static inline bool bth_kind_is_dict(berth_kind kind)
{
    return kind >= BERTH_KIND_DICT && kind <= BERTH_KIND_COUNTER;
}

#endif
