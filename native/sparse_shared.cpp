// Kernels for weights that share values: a separate source, so that they are compiled in parallel.

#include "sparse_kernels.h"

void convolve_shared(const Step& step, const Area& area, const Work& work) {
    Shared values{step.codes, step.table};
    if (step.wide)
        convolve_area(step, static_cast<const int32_t*>(step.places), values, area, work);
    else
        convolve_area(step, static_cast<const uint16_t*>(step.places), values, area, work);
}
