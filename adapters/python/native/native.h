/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * berth._native: what the Python package does in C.
 *
 *   module.c          the module's functions
 *   error.c           berth_error -> exception
 *   gil.c             the GIL for threads that Python does not know; forks
 *   handlers.c        what ^C and other signals cannot come between
 *   walk.c            a long walk lets other threads run
 *   held.c            what objects have open, as long as it is used
 *   pointer_map.c     addresses -> addresses: identity of objects and values
 *   torch_names.c     torch's types, functions and dtypes, looked up once
 *   save_values.c     Python values -> a tree
 *   dlpack.h          tensors as other libraries see them
 *   save_tensors.c    tensors and storages -> a tree
 *   descriptors.c     the descriptors of this process
 *   devices.c         devices that Berth knows; events of their streams
 *   save.c            a Python value -> a save
 *   save_records.c    records that PyTorch has pickled -> a save
 *   joint.c           a save of many processes
 *   job.c             a save that goes on; signals
 *   urls.c            where bytes come from; URLs, and why reading them failed
 *   pinned.c          a source that is opened once, and keeps what is read
 *   checkpoint.c      an open file, as long as anything of it is used
 *   load_memory.c     memory of storages -> tensors, by DLPack
 *   load_tensors.c    a tree -> tensors and storages
 *   load_devices.c    storages that go to a device
 *   load_values.c     a tree -> Python values
 *   key_costs.c       what keys of a file can make Python do
 *   load.c            the functions of an open file
 *   archive.c         the records of a file, for PyTorch to unpickle
 *   verify.c          what is wrong with a file
 *   rows.c            rows of large tables, by a cache
 *   options.c         options
 *
 * Everything here holds the GIL, if nothing else is said. Names across files begin with bpy_.
 */
#ifndef BERTH_NATIVE_H
#define BERTH_NATIVE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <berth.h>
#include <berth/more.h>

/* ---- the GIL ---- */

/* What a thread that has taken the GIL gives back. */
typedef struct bpy_gil {
    PyThreadState *made; /* NULL: Python knew the thread */
    PyGILState_STATE known;
} bpy_gil;

/* Once, when the module is made. */
void bpy_gil_make(void);

/* Takes the GIL, on any thread, with it or without. Each take has its give. */
bpy_gil bpy_gil_take(void);
void bpy_gil_give(bpy_gil gil);

/* The module's functions for os.register_at_fork. */
extern PyMethodDef bpy_fork_functions[];

/* The module's functions that no handler of a signal comes between. */
extern PyMethodDef bpy_handler_functions[];

/* ---- errors ---- */

/*
 * Raises the exception of a failed call.
 * Returns: NULL.
 */
PyObject *bpy_raise(const berth_error *error);

/* The same of a source that was opened: a refusal lists all that its pickle names. */
PyObject *bpy_raise_refusal(const berth_error *error, const berth_source *source);

/*
 * What the pickle of a source names. *error: why it cannot be listed now: then the list is empty,
 * and no exception is raised; whoever asks has a verdict on the file, which stays. Returns: a new
 * list of rows (module, name, is_allowed); NULL: an exception is raised.
 */
PyObject *bpy_globals_of(const berth_source *source, berth_error *error);

/* What a pickle does with objects of classes; the numbers are in berth._errors, too. */
#define BPY_APPENDS 1
#define BPY_SETS_ITEMS 2

/*
 * Which of these the pickle of a source does. Nothing is made.
 * Returns: 0: none, or it cannot be read; -1: an exception is raised.
 */
int bpy_fills_objects(const berth_source *source);

/*
 * A str as bytes, in the encoding of paths. What cannot be one text is refused: a NUL would end it
 * (Y11). Parameters: what: for messages: "the name of an option". Returns: a new reference; NULL:
 * TypeError or berth.ArgumentError is raised.
 */
PyObject *bpy_text(PyObject *object, const char *what);

/*
 * A progress function, called without the GIL: runs the handlers of signals.
 * Returns: not 0, which cancels: one has raised an exception.
 */
int bpy_check_signals(void *context, uint64_t done_nbytes, uint64_t total_nbytes);
/* The same of a request that waits: only the main thread runs the handlers. */
int bpy_is_interrupted(void);
/* Adds it to the exception that is set. */
void bpy_add_note(const char *text);

/* ---- what objects have open ---- */

/*
 * What a Python object has open, and can close while others use it (Y8). It is counted: the object
 * uses it until it is closed, each call until it returns, and so does all that a call hands out.
 * The last user ends it, on any thread. It is the first field of what is open.
 */
typedef struct bpy_held {
    atomic_size_t n_users;
    void (*end)(struct bpy_held *held); /* without the GIL, or with it */
} bpy_held;

/* A Python object that has such a thing open. */
typedef struct bpy_holder {
    PyObject_HEAD bpy_held *held; /* NULL: closed */
} bpy_holder;

/* One more user. Needs no GIL. */
bpy_held *bpy_use(bpy_held *held);

/* One user less. Needs no GIL; whoever has it gives it up for the end by bpy_release_without_gil.
 */
void bpy_release(bpy_held *held);
void bpy_release_without_gil(bpy_held *held);

/* A new object. Takes a user of what it holds, on failure too. */
PyObject *bpy_holder_new(PyTypeObject *type, bpy_held *held);

/*
 * What an object has open, with one more user.
 * Parameters: closed: what is said if it is closed.
 * Returns: NULL: ValueError is raised.
 */
bpy_held *bpy_hold(PyObject *self, const char *closed);

/*
 * A method of such an object. It gets no object, but what that has open, held from before the
 * method runs anything until it has returned: so no method can use what another thread, or a
 * finalizer, closes.
 */
typedef PyObject *(*bpy_held_method)(bpy_held *held, PyObject *arguments);
PyObject *bpy_call_held(PyObject *self, PyObject *arguments, bpy_held_method method,
                        const char *closed);

/* The function of METH_VARARGS, METH_O and METH_NOARGS that calls such a method: METHOD_held. */
#define BPY_HELD_METHOD(METHOD, CLOSED)                                                            \
    static PyObject *METHOD##_held(PyObject *self, PyObject *arguments)                            \
    {                                                                                              \
        return bpy_call_held(self, arguments, METHOD, CLOSED);                                     \
    }

/* The method close(), which may be called twice, and the end of an object. */
PyObject *bpy_holder_close(PyObject *self, PyObject *unused);
void bpy_holder_dealloc(PyObject *self);

/* ---- maps ---- */

/* Addresses -> addresses. Zeros: empty. */
typedef struct bpy_map_slot {
    const void *key; /* NULL: free */
    void *value;
} bpy_map_slot;

typedef struct bpy_map {
    bpy_map_slot *slots;
    size_t n_slots; /* 0, or a power of two */
    size_t n;
} bpy_map;

/* The value of a key; NULL: there is none. */
void *bpy_map_get(const bpy_map *map, const void *key);

/*
 * Sets the value of a key.
 * Returns: 0; -1: MemoryError is raised.
 */
int bpy_map_set(bpy_map *map, const void *key, void *value);

/* Makes room for n more keys, or for some of them; without memory, bpy_map_set says so. */
void bpy_map_reserve(bpy_map *map, size_t n);

void bpy_map_free(bpy_map *map);

/* ---- long walks ---- */

/*
 * A walk over many values. The cyclic collector does not run meanwhile; other threads do, now and
 * then. So whatever they may drop or change, the walk holds or copies. Each begin has its end.
 */
typedef struct bpy_walk {
    unsigned int n_values;
} bpy_walk;

void bpy_walk_begin(void);

/* The GIL was given up for a moment, and not by bpy_walk_next: that need not be soon again. */
void bpy_walk_held(void);

/*
 * From here on a thread that wants the GIL has it within 0.2 ms. Each begin has its end. They need
 * the GIL, and leave an exception that is raised as it is.
 */
void bpy_hurry_begin(void);
void bpy_hurry_end(void);

/*
 * One more value was walked. Gives the GIL up for a moment if the walk has held it for 4 ms.
 * Returns: whether it did.
 */
bool bpy_walk_next(bpy_walk *walk);

/*
 * The same, and runs the handlers of signals.
 * Returns: 0; -1: a handler has raised an exception.
 */
int bpy_walk_check(bpy_walk *walk);

/* Leaves an exception that is raised as it is. */
void bpy_walk_end(void);

/* In a child: the walks of other threads have ended there. */
void bpy_walk_after_fork(void);

/* ---- torch ---- */

/* What this module takes of torch and collections; references that are held for ever. */
typedef struct bpy_torch {
    PyObject *Tensor, *Parameter, *Size, *dtype, *device, *layout, *qscheme;
    PyObject *UntypedStorage, *TypedStorage, *OrderedDict, *Counter;
    PyObject *empty, *from_dlpack, *make_subclass, *set_metadata, *set_state;
    PyObject *rebuild_meta, *rebuild_quantized, *rebuild_sparse, *rebuild_nested;
    PyObject *get_metadata, *warn_hooks, *allowed_globals;
    /* Methods of Tensor, UntypedStorage and OrderedDict, for bpy_call: see there. */
    PyObject *untyped_storage, *storage_offset, *size, *stride, *set, *getstate;
    PyObject *data_ptr, *nbytes, *ordered_items, *ordered_getstate;
    const void *exchange; /* DLPack's table of C functions, of PyTorch 2.10 and later; or NULL */
    PyObject *dtypes[BERTH_DTYPE_COUNT];
    bool is_new[BERTH_DTYPE_COUNT]; /* saved by untyped storages */
    bool shares_all;                /* storages without an address, too: PyTorch 2.15 and later */
    PyObject *layouts[BERTH_JAGGED + 1];
    PyObject *qschemes[BERTH_PER_CHANNEL_AFFINE_FLOAT_QPARAMS + 1];
} bpy_torch;

/*
 * Imports torch, the first time.
 * Returns: its names; NULL: an exception is raised.
 */
const bpy_torch *bpy_torch_get(void);

/* The number of a constant in one of the tables above; 0: it is not there. */
int bpy_torch_find(PyObject *const *table, int n, const PyObject *constant);

/* Names of attributes, as str objects: of those that no attribute of a file can hide. */
typedef struct bpy_names {
    PyObject *dtype, *layout, *is_cpu, *is_meta, *requires_grad, *is_nested, *backward_hooks, *data,
        *dict, *untyped, *type, *index, *device;
} bpy_names;

extern bpy_names bpy_name;

/* Makes them. Returns: 0; -1: an exception is raised. */
int bpy_names_make(void);

/*
 * object.method(). The method was taken from the type, once: nothing is looked up on an object
 * whose attributes a file may have chosen, such as a tensor with the attribute `untyped_storage`
 * (Y5).
 */
static inline PyObject *bpy_call(PyObject *object, PyObject *method)
{
    return PyObject_CallFunctionObjArgs(method, object, NULL);
}

/* ---- saving ---- */

/* Makes a tree of a Python value. */
typedef struct bpy_saver {
    const bpy_torch *torch;
    berth_tree *tree;
    bpy_map nodes;     /* object -> value */
    bpy_map storages;  /* StorageImpl -> berth_storage */
    bpy_map addresses; /* of bytes -> the torch.dtype by which they are saved */
    bool is_on_host;   /* the storage that is saved now is the host's: nobody has to ask it */
    void *address;     /* and that is where it begins; NULL: it has to be asked */
    PyObject *events;  /* torch.device -> of bpy_event_new; NULL: none yet */
    PyObject **owners; /* objects that must live until the save ends: all that nodes has */
    size_t n_owners, room_for_owners;
    PyObject *elsewhere; /* the type of tensors that other processes have; NULL: there are none */
    bpy_map outline;     /* value -> object of that type */
    bpy_walk walk;
    const char *base; /* the save's, the caller's; NULL: as save.base says */
    PyObject *steps;  /* where it was refused: a list of str, the last step first */
    PyObject *why;    /* str: why the value cannot be saved as plain values; NULL: another error */
} bpy_saver;

/*
 * The value of an object, made at its first use.
 * Returns: NULL: saver->why says why not; or an exception is raised; or the tree has an error.
 */
berth_value *bpy_save_value(bpy_saver *saver, PyObject *object);

/*
 * The tree of a value: makes saver->tree.
 * Returns: its root; NULL: an exception is raised.
 */
berth_value *bpy_save_walk(bpy_saver *saver, PyObject *object);

/* The same for a tensor, a Parameter and for both kinds of storages. */
berth_value *bpy_save_tensor(bpy_saver *saver, PyObject *tensor);
berth_value *bpy_save_parameter(bpy_saver *saver, PyObject *parameter);
berth_value *bpy_save_untyped(bpy_saver *saver, PyObject *storage);
berth_value *bpy_save_typed(bpy_saver *saver, PyObject *storage);
berth_value *bpy_save_elsewhere(bpy_saver *saver, PyObject *tensor);

/* Raises TypeError for a dtype that PyTorch knows, but has no way to save: int1 to uint7. */
int bpy_check_is_saved(const bpy_saver *saver, int dtype);
/* The type by which a storage is saved: a dtype of PyTorch's older storage classes, or none. */
berth_dtype bpy_storage_class(const bpy_saver *saver, uint64_t nbytes, int dtype);

/*
 * Keeps an object until the save has ended. Takes the reference.
 * Returns: 0; -1: an exception is raised.
 */
int bpy_saver_keep(bpy_saver *saver, PyObject *object);

/*
 * Calls berth._device.ready(device, storage), and keeps the result in the dict *events, which is
 * made at the first call.
 * Parameters: storage: one of that device; NULL: it is for a load.
 * Returns: a borrowed tuple: the device's name, the driver's event, its owner; None: Berth does not
 * know the device; NULL: an exception is raised.
 */
PyObject *bpy_event_new(PyObject **events, PyObject *device, PyObject *storage);

/* Functions of the module. */
PyObject *bpy_has_device(PyObject *module, PyObject *name);
PyObject *bpy_is_open_for_writing(PyObject *module, PyObject *arguments);

/*
 * Says why a value is refused, as PyUnicode_FromFormat does.
 * Returns: NULL.
 */
berth_value *bpy_refuse(bpy_saver *saver, const char *format, ...);

/* Frees what a saver has. It may be all zeros. */
void bpy_saver_free(bpy_saver *saver);

/* The module's functions save_begin, save_specs_begin, dtype_nbytes and save_records_begin. */
PyObject *bpy_save_begin(PyObject *module, PyObject *arguments);
PyObject *bpy_save_specs_begin(PyObject *module, PyObject *arguments);
PyObject *bpy_dtype_nbytes(PyObject *module, PyObject *name);
PyObject *bpy_save_records_begin(PyObject *module, PyObject *arguments);

/* ---- many writers ---- */

/* Makes the type Joint and adds it, and its functions, to the module. Returns: 0; -1. */
int bpy_joint_type_add(PyObject *module);

/* ---- jobs ---- */

/*
 * Begins a save.
 * Parameters: saver: owns all that the content needs. to: bytes: a path; int: a descriptor; any
 * other object: a function that writes bytes, called from the job's thread. flags: of
 * berth_save_begin.
 * Ownership: takes what the saver has, on failure too; it goes when the save is staged. If the
 * last reference to the Job goes before the save has ended, the save is cancelled.
 * Returns: a new reference; NULL: an exception is raised.
 */
PyObject *bpy_job_begin(bpy_saver *saver, PyObject *to, const berth_content *content,
                        const char *archive_name, uint32_t flags);

/* Makes the type Job and adds it to the module. Returns: 0; -1. */
int bpy_job_type_add(PyObject *module);

/* ---- loading ---- */

/*
 * Where bytes come from: bytes: a path; an int: a descriptor; a str: a URL, which is opened; an
 * object that can be called: a Stream of berth._source; a Pinned; any other object: its buffer,
 * which *buffer holds then. Of the last three *owner is not NULL.
 * Lifetime: bpy_source_free is due when nothing reads the source any more.
 * Returns: 0; -1: an exception is raised.
 */
int bpy_source_of(PyObject *from, berth_source *source, Py_buffer *buffer, PyObject **owner);

/*
 * A configuration for reading it. A Stream is read in order, on the thread of the call: a file
 * object may know one thread only, and what it raises ends the call.
 * Parameters: assignments: of options.
 * Returns: NULL: *error says why.
 */
berth_config *bpy_source_config(const berth_source *source, const char *assignments,
                                berth_error *error);

/* Whether an object is a Pinned: then its source, which must not outlive it. */
bool bpy_pinned_source(PyObject *from, berth_source *source);

/* What the source of a Pinned reads where nothing is kept: a file, memory, a URL or a Stream; else
 * the source. */
const berth_source *bpy_source_origin(const berth_source *source);

/* Closes a URL; does nothing to other sources, and to zeros. Needs no GIL. */
void bpy_source_free(berth_source *source);

/* A call begins to read the source: an earlier signal does not stop it. */
void bpy_source_go(const berth_source *source);

/* bpy_check_signals; what stops, stops the workers that wait for the source, the context, as well.
 */
int bpy_source_check_signals(void *context, uint64_t done_nbytes, uint64_t total_nbytes);

/*
 * From here on, or no more, this thread reads what other calls may wait for: what a Stream raises
 * does not stay raised, but waits for bpy_raise_of_stream.
 */
void bpy_read_for_all(bool on);

/* Whether a Stream's own exception was the reason of a failed call: then it is raised. */
bool bpy_raise_of_stream(const berth_source *source, const berth_error *error);

/* If reading a URL has failed, the error gets the words of the network. */
void bpy_explain(berth_error *error);

/* An open file. */
#define BPY_NAME_NBYTES 208 /* of a file's name, in messages */

typedef struct bpy_checkpoint {
    bpy_held held;
    atomic_size_t n_memories; /* of storages, and one for all users */
    berth_checkpoint *handle;
    PyObject *owner; /* of the memory that is read, a Stream or a Pinned; NULL: a file */
    Py_buffer buffer;
    berth_source source; /* the path or name in it is gone when the file is open */
    char name[BPY_NAME_NBYTES];
} bpy_checkpoint;

/*
 * Raises the exception of an error of ours, which is about an open file: its message gets the names
 * of the file and of the error's record.
 * Returns: NULL.
 */
PyObject *bpy_raise_of(const bpy_checkpoint *checkpoint, berth_error *error);

/* For memory that outlives those who use the file. Any thread, with the GIL or without. */
void bpy_checkpoint_use_memory(bpy_checkpoint *checkpoint);
void bpy_checkpoint_release_memory(bpy_checkpoint *checkpoint);

/*
 * Opens a file.
 * Parameters: source: as for bpy_source_of. assignments: of options, for this file.
 * Returns: NULL: an exception is raised.
 */
bpy_checkpoint *bpy_checkpoint_open(PyObject *source, const char *assignments);

/*
 * What a Python object of the type Checkpoint has open, with one more user.
 * Returns: NULL: an exception is raised: it is closed, or another object.
 */
bpy_checkpoint *bpy_checkpoint_of(PyObject *object);

/* A tensor by its name; NULL: an exception is raised. */
const berth_tensor *bpy_checkpoint_find(const bpy_checkpoint *checkpoint, PyObject *name);

/*
 * Around a call that maps a file's bytes, or waits for those of a URL: then the GIL is given up.
 * Whatever the call needs must be held.
 */
PyThreadState *bpy_checkpoint_begin_wait(const bpy_checkpoint *checkpoint);
void bpy_checkpoint_end_wait(PyThreadState *thread);

/* Memory for the bytes of one storage. */
typedef struct bpy_memory bpy_memory;

/*
 * New memory; large pages, if it is large.
 * Returns: NULL: MemoryError is raised.
 */
bpy_memory *bpy_memory_new(size_t nbytes);

/* Memory of an open file, which it keeps open. */
bpy_memory *bpy_memory_of(bpy_checkpoint *checkpoint, const void *address, size_t nbytes);

void *bpy_memory_address(const bpy_memory *memory);
void bpy_memory_free(bpy_memory *memory);

/*
 * Makes a tensor whose storage is this memory. Consumes the memory, on failure too.
 * Parameters: tensor: NULL: uint8, of all bytes; else one of which bpy_memory_fits is true.
 */
PyObject *bpy_memory_to_tensor(const bpy_torch *torch, bpy_memory *memory,
                               const berth_tensor *tensor);

/* Whether a tensor has a dtype that DLPack knows, and uses the whole of nbytes bytes. */
bool bpy_memory_fits(const berth_tensor *tensor, uint64_t nbytes);

/* Makes Python values of an open file. */
typedef struct bpy_loader {
    const bpy_torch *torch;
    bpy_checkpoint *checkpoint;
    bool in_place;     /* tensors use the file's own memory */
    bool keeps_empty;  /* empty storages are shared, too: as torch.load(mmap=True) does */
    bool is_meta;      /* map_location="meta": no bytes */
    PyObject *restore; /* a function (storage, location) -> storage; NULL: all goes to the host */
    bool cpu_stays;    /* storages of the host are not passed to it */
    PyObject *places;  /* berth._device.places with it; NULL: it wants to see the storages */
    bpy_map objects;   /* value -> object; references */
    bpy_map storages;  /* berth_storage -> bpy_loaded_storage */
    bpy_map sizes;     /* tuples and objects -> how large they are as keys; see key_costs.c */
    uint64_t n_key_items, n_keys, n_steps; /* of keys, and to their places; see key_costs.c */
    bool is_trial; /* stand-ins take the place of tensors and of what classes of the file make */
    bpy_walk walk;
    struct bpy_frame *frames;
    size_t n_frames, room_for_frames;
} bpy_loader;

/*
 * Reads the bytes of all storages that stay on the host, if they are not used in place.
 * Returns: 0; -1: an exception is raised.
 */
int bpy_load_storages(bpy_loader *loader);

/*
 * Loads the storages that go to a device that Berth knows, after bpy_load_storages.
 * Returns: 0; -1: an exception is raised.
 */
int bpy_load_to_devices(bpy_loader *loader);

/* Whether nobody has to be asked where a storage goes. */
bool bpy_stays_on_host(const bpy_loader *loader, const berth_storage *storage);

/* The location that the file gives it, as torch.load reads it: a str. NULL: an exception is raised.
 */
PyObject *bpy_location_of(const berth_storage *storage);

/* Sets a storage's UntypedStorage. Returns: 0; -1: MemoryError is raised. */
int bpy_loader_set_storage(bpy_loader *loader, const berth_storage *storage, PyObject *untyped);

/* Any tensor, also sparse, nested and Parameters, without its attributes; a new reference. */
PyObject *bpy_load_tensor(bpy_loader *loader, const berth_value *value);

/* A TypedStorage, as torch.load gives it. */
PyObject *bpy_load_storage(bpy_loader *loader, const berth_value *value);

/* How many steps Python makes for the keys of one container. */
typedef struct bpy_key_table bpy_key_table;

bpy_key_table *bpy_key_table_new(uint64_t n, bool is_set);
void bpy_key_table_free(bpy_key_table *table);

/*
 * Counts a tuple, or in a trial an object of a class of the file, whose parts are all there.
 * Returns: 0; -1: an exception is raised.
 */
int bpy_count_key(bpy_loader *loader, const berth_value *value);

/*
 * In a trial, what bpy_check_key does for the items of a call, if it makes a frozenset.
 * Returns: 0; -1: an exception is raised.
 */
int bpy_check_frozenset(bpy_loader *loader, const berth_value *call);

/*
 * Whether Python can hash a key and find its place, and those of all keys before it, in reasonable
 * time. *table: of the container, made when it is needed; NULL: not yet.
 * Returns: 0; -1: an exception is raised.
 */
int bpy_check_key(bpy_loader *loader, bpy_key_table **table, const berth_value *container,
                  const berth_value *key, PyObject *object);

/* The object of a value. */
PyObject *bpy_load_value(bpy_loader *loader, const berth_value *value);

void bpy_loader_free(bpy_loader *loader);

/* Make the types Checkpoint, Archive and Pinned and add them to the module. Return: 0; -1. */
int bpy_checkpoint_type_add(PyObject *module);
int bpy_pinned_type_add(PyObject *module);
int bpy_archive_type_add(PyObject *module);

/* The module's function verify. */
PyObject *bpy_verify(PyObject *module, PyObject *from);
/* The module's function show_text. */
PyObject *bpy_show_text(PyObject *module, PyObject *bytes);
/* The module's functions url_shown, url_beside and read_url. */
PyObject *bpy_url_shown(PyObject *module, PyObject *url);
PyObject *bpy_url_beside(PyObject *module, PyObject *arguments);
PyObject *bpy_read_url(PyObject *module, PyObject *arguments);

/* Makes the types Rows and Ticket and adds them to the module. Returns: 0; -1. */
int bpy_rows_types_add(PyObject *module);

/* ---- options ---- */

extern PyMethodDef bpy_option_functions[];

#endif /* BERTH_NATIVE_H */
