#pragma once

#include <cstdio>

#include "muonrt/muonrt.hpp"
#include "train/options.hpp"
#include "train/place.hpp"
#include "train/text.hpp"

namespace muonrt::train {

/// `muonrt train` on one rank: every run that the options ask for, then the result, which rank 0
/// prints and writes to the folder `out`. Collective.
/// @param corpus  a corpus with the preset's context; threads of several ranks may share it.
/// @param screen  where rank 0 shows progress. The result goes to standard output.
/// @return  the exit code: 0, or 128 plus the signal that stopped the run, as in a shell.
/// Throws std::runtime_error or muonrt::Error.
int train(Comm& comm, const Options& options, const Corpus& corpus, std::FILE* screen,
          const Place& place = {});

}  // namespace muonrt::train
