// Kernels for weights of 32-bit places and a value each: a separate source, so that they are compiled in parallel.

#include "sparse_kernels.h"

void convolve_wide(const Step& step, const Area& area, const Work& work) {
    convolve_area(step, static_cast<const int32_t*>(step.places), Own{step.values}, area, work);
}
