/* SPDX-License-Identifier: BSD-3-Clause */
/* A berth_error becomes an exception (berth._errors.make chooses its class); signals do so, too. */
#include <berth/config.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "adapters/python/native/native.h"

/* A global's row is added to a list, on the calling thread. */
static void add_global(void *context, const char *module, const char *name, bool is_allowed)
{
    bpy_gil gil = bpy_gil_take();
    PyObject *texts[2] = {NULL, NULL}, *row = NULL;
    if (!PyErr_Occurred()) {
        texts[0] = PyUnicode_DecodeUTF8(module, (Py_ssize_t)strlen(module), "backslashreplace");
        texts[1] = PyUnicode_DecodeUTF8(name, (Py_ssize_t)strlen(name), "backslashreplace");
    }
    if (texts[0] && texts[1])
        row = Py_BuildValue("(OOO)", texts[0], texts[1], is_allowed ? Py_True : Py_False);
    if (row)
        (void)PyList_Append(context, row);
    Py_XDECREF(row);
    Py_XDECREF(texts[0]);
    Py_XDECREF(texts[1]);
    bpy_gil_give(gil);
}

PyObject *bpy_globals_of(const berth_source *source, berth_error *error)
{
    PyObject *list = PyList_New(0);
    if (!list)
        return NULL;
    Py_BEGIN_ALLOW_THREADS;
    error->code = berth_list_globals(source, add_global, list, error);
    Py_END_ALLOW_THREADS;
    if (!PyErr_Occurred())
        return list;
    Py_DECREF(list);
    return NULL;
}

PyObject *bpy_raise(const berth_error *error)
{
    return bpy_raise_refusal(error, NULL);
}

PyObject *bpy_raise_of(const bpy_checkpoint *checkpoint, berth_error *error)
{
    char why[300];
    memcpy(why, error->message, sizeof why - 1);
    why[sizeof why - 1] = '\0';
    (void)snprintf(error->message, sizeof error->message, "%s: %.100s%s%s", checkpoint->name,
                   error->record, *error->record ? ": " : "", why);
    return bpy_raise(error);
}

/* ---- what a pickle does with objects of its classes ---- */

typedef struct walk_stack {
    const berth_value **values;
    size_t n, room;
    bpy_map seen;
} walk_stack;

/* Returns: 0; -1: MemoryError is raised. */
static int walk_push(walk_stack *stack, const berth_value *value)
{
    bool has_parts =
        value &&
        (berth_value_kind(value) >= BERTH_KIND_TENSOR ||
         (berth_value_kind(value) >= BERTH_KIND_LIST && berth_value_kind(value) <= BERTH_KIND_SET));
    if (!has_parts || bpy_map_get(&stack->seen, value))
        return 0;
    if (stack->n == stack->room) {
        size_t room = stack->room ? 2 * stack->room : 64;
        const berth_value **values = PyMem_Realloc(stack->values, room * sizeof *values);
        if (!values)
            return PyErr_NoMemory(), -1;
        stack->values = values;
        stack->room = room;
    }
    stack->values[stack->n++] = value;
    return bpy_map_set(&stack->seen, value, (void *)(uintptr_t)1);
}

/* Pushes all that is in a value. Returns: 0; -1: MemoryError is raised. */
static int walk_push_parts(walk_stack *stack, const berth_value *value)
{
    berth_value *key, *item;
    int status = 0;
    for (size_t i = 0; status == 0 && berth_dict_at(value, i, &key, &item); i++)
        if ((status = walk_push(stack, key)) == 0)
            status = walk_push(stack, item);
    for (size_t i = 0; status == 0 && i < berth_value_count(value); i++)
        status = walk_push(stack, berth_value_at(value, i));
    for (int part = BERTH_PART_INNER; status == 0 && part <= BERTH_PART_TYPE; part++)
        status = walk_push(stack, berth_value_part(value, (berth_part)part));
    return status;
}

/* Returns: as bpy_fills_objects. */
static int walk_finds_filled(const berth_value *root)
{
    walk_stack stack = {0};
    int found = 0, status = walk_push(&stack, root);
    while (status == 0 && stack.n > 0 && found != (BPY_APPENDS | BPY_SETS_ITEMS)) {
        const berth_value *value = stack.values[--stack.n];
        bool is_object = berth_value_kind(value) == BERTH_KIND_CALL;
        if (is_object && berth_value_part(value, BERTH_PART_LIST_ITEMS))
            found |= BPY_APPENDS;
        if (is_object && berth_value_part(value, BERTH_PART_DICT_ITEMS))
            found |= BPY_SETS_ITEMS;
        status = walk_push_parts(&stack, value);
    }
    PyMem_Free(stack.values);
    bpy_map_free(&stack.seen);
    return status < 0 ? -1 : found;
}

int bpy_fills_objects(const berth_source *source)
{
    static const char inert[] = "load.mmap=off load.unknown_globals=inert load.check=directory";
    berth_error error;
    berth_config *config = bpy_source_config(source, inert, &error);
    const berth_params params = {.config = config};
    berth_checkpoint *handle = NULL;
    int found = 0;
    if (config) {
        Py_BEGIN_ALLOW_THREADS;
        if (berth_open_source(source, &params, &handle, &error) < 0)
            handle = NULL;
        Py_END_ALLOW_THREADS;
    }
    berth_config_free(config);
    if (handle && !PyErr_Occurred())
        found = walk_finds_filled(berth_root(handle));
    berth_close(handle);
    return PyErr_Occurred() ? -1 : found;
}

PyObject *bpy_raise_refusal(const berth_error *failure, const berth_source *source)
{
    berth_error own = *failure, *error = &own;
    if (PyErr_Occurred()) /* a file object, or the handler of a signal, has ended the call by it */
        return NULL;
    bpy_explain(error);
    PyObject *errors = PyImport_ImportModule("berth._errors");
    if (!errors)
        return NULL;
    PyObject *message = PyUnicode_DecodeUTF8(error->message, (Py_ssize_t)strlen(error->message),
                                             "backslashreplace");
    PyObject *record =
        PyUnicode_DecodeUTF8(error->record, (Py_ssize_t)strlen(error->record), "backslashreplace");
    berth_error unlisted; /* then the refusal stands alone */
    bool is_refusal = source && error->code == BERTH_E_FORBIDDEN;
    PyObject *named = is_refusal ? bpy_globals_of(source, &unlisted) : PyTuple_New(0);
    PyObject *exception = NULL;
    int fills = named && is_refusal ? bpy_fills_objects(source) : 0;
    if (message && record && named && fills >= 0)
        exception = PyObject_CallMethod(errors, "make", "sOiKOOi", berth_status_name(error->code),
                                        message, error->system_errno,
                                        (unsigned long long)error->offset, record, named, fills);
    Py_XDECREF(named);
    if (exception)
        PyErr_SetObject((PyObject *)Py_TYPE(exception), exception);
    Py_XDECREF(exception);
    Py_XDECREF(message);
    Py_XDECREF(record);
    Py_DECREF(errors);
    return NULL;
}

PyObject *bpy_text(PyObject *object, const char *what)
{
    berth_error error = {.code = BERTH_E_ARGUMENT, .offset = BERTH_NO_OFFSET};
    if (!PyUnicode_Check(object))
        return PyErr_Format(PyExc_TypeError, "%s is a str, not %R", what,
                            (PyObject *)Py_TYPE(object));
    PyObject *bytes = PyUnicode_EncodeFSDefault(object);
    if (bytes && strlen(PyBytes_AsString(bytes)) == (size_t)PyBytes_Size(bytes))
        return bytes;
    if (!bytes && !PyErr_ExceptionMatches(PyExc_UnicodeError))
        return NULL;
    (void)snprintf(error.message, sizeof error.message, "%s has %s", what,
                   bytes ? "a NUL character" : "characters that cannot be encoded");
    Py_XDECREF(bytes);
    PyErr_Clear();
    return bpy_raise(&error);
}

void bpy_add_note(const char *text)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    PyObject *note = PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
    PyObject *result = note ? PyObject_CallMethod(value, "add_note", "O", note) : NULL;
    if (!result)
        PyErr_Clear();
    Py_XDECREF(result);
    Py_XDECREF(note);
    PyErr_Restore(type, value, traceback);
}

int bpy_is_interrupted(void)
{
    return syscall(SYS_gettid) == getpid() && bpy_check_signals(NULL, 0, 0);
}

int bpy_check_signals(void *context, uint64_t done_nbytes, uint64_t total_nbytes)
{
    (void)context;
    (void)done_nbytes;
    (void)total_nbytes;
    bpy_gil gil = bpy_gil_take();
    int stop = PyErr_Occurred() || PyErr_CheckSignals() < 0; /* a file object may have raised one */
    bpy_gil_give(gil);
    return stop;
}
