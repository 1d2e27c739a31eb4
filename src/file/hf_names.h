/* hf_names.h: the model families of Hugging Face that are known, as tables. Internal to file/.
 *
 * One idea: a family is rows, not code. A row of names says which module becomes which GGUF tensor; a row of keys
 * says which entry of config.json becomes which GGUF key. A new family adds rows.
 */
#ifndef MOTE_FILE_HF_NAMES_H
#define MOTE_FILE_HF_NAMES_H

#include <stddef.h>
#include <stdint.h>

enum mote_hf_role {
    MOTE_HF_DENSE,   /* one module, one tensor */
    MOTE_HF_VECTOR,  /* one module with one output: [1, n] becomes [n] */
    MOTE_HF_EXPERT,  /* one module per expert: the second # is its number */
    MOTE_HF_STACKED, /* one module holds all experts: [E, out, in] */
    MOTE_HF_GATE_UP  /* as STACKED with gate's rows first and then up's: [E, 2 I, in]; becomes two tensors */
};

struct mote_hf_name {
    const char *from; /* module path, # for a number */
    const char *to;   /* GGUF name without ".weight", # for the first number */
    enum mote_hf_role role;
    const char *to_up; /* GATE_UP: the second tensor */
};

enum mote_hf_type { MOTE_HF_U32, MOTE_HF_F32, MOTE_HF_BOOL };

struct mote_hf_key {
    const char *from; /* in config.json; a dot goes into an object */
    const char *to;   /* GGUF key behind "ARCH." */
    enum mote_hf_type type;
    int required;
    double otherwise; /* value when absent, as Hugging Face's configuration class has it; < 0: no key then */
};

/* Entries that must have this value when they are there: what else they could ask for is not built. */
struct mote_hf_fixed {
    const char *from;
    const char *value; /* JSON text */
};

struct mote_hf_family {
    const char *model_type, *arch;
    const struct mote_hf_name *names[4]; /* tables that end with {NULL}; searched in order */
    const struct mote_hf_key *keys[4];
    const struct mote_hf_fixed *fixed;
};

/* NULL when the family is not known. */
const struct mote_hf_family *mote_hf_family_find(const char *model_type);
const struct mote_hf_family *mote_hf_family_of(const char *arch); /* the first of that architecture */
/* "a, b, c" of all model types, for messages. */
void mote_hf_family_list(char *out, size_t size);

struct mote_hf_place {
    const struct mote_hf_name *rule;
    int64_t number[2]; /* layer, expert */
};
/* The row for a module path of `length` bytes; 0 when there is none. */
int mote_hf_place_find(const struct mote_hf_family *family, const char *module, size_t length,
                       struct mote_hf_place *out);
/* Put the layer into a name of one number. */
void mote_hf_name_make(const char *to, int64_t layer, const char *suffix, char *out, size_t size);

/* The other way, for a writer. The module of a GGUF name of `length` bytes without its suffix, experts stacked as MLX
 * has them: its row, or NULL. */
const struct mote_hf_name *mote_hf_module_make(const struct mote_hf_family *family, const char *name,
                                               size_t length, char *out, size_t size);
/* The row of a GGUF key behind "ARCH.", derived ones in their plain form: NULL when config.json has no entry for it. */
const struct mote_hf_key *mote_hf_key_of(const struct mote_hf_family *family, const char *to);

#endif
