mod controller;
mod entries;
mod hostile;
mod layouts;
mod sequences;
mod support;
mod sweeps;
