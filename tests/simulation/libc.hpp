#pragma once

#include <dlfcn.h>

#include "simulation/scheduler.hpp"

namespace simulation {

/// True on a fiber of a world: the functions of the system are then those of the simulation.
inline bool inside() { return Scheduler::current() != nullptr; }

/// The function of the C library that a definition of this program replaces.
#define SIMULATION_REAL(name) (reinterpret_cast<decltype(&name)>(dlsym(RTLD_NEXT, #name)))

/// Enters a function of the system: the process may be killed, or another fiber may run.
inline Scheduler& enter_system() {
  Scheduler& s = Scheduler::get();
  s.step();
  s.preempt();
  return s;
}

}  // namespace simulation
