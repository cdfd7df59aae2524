/* Quantising weights at load, for the folders above: draft/ sees formats/ only through model/. */
#ifndef DS_MODEL_REQUANT_H
#define DS_MODEL_REQUANT_H

#include "formats/requant.h"

#endif
