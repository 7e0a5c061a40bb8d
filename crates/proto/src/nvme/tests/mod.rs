mod controller;
mod entries;
mod hostile;
mod sequences;
mod support;
