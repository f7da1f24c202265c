-- Run once, when the database is new: the owner makes the tables, the application works in them and owns nothing.
\set ON_ERROR_STOP on
\getenv owner_password HINDCAST_OWNER_PASSWORD
\getenv app_password HINDCAST_APP_PASSWORD
CREATE ROLE hindcast_owner LOGIN PASSWORD :'owner_password';
CREATE ROLE hindcast_app LOGIN PASSWORD :'app_password';
CREATE DATABASE hindcast OWNER hindcast_owner ENCODING 'UTF8' TEMPLATE template0;
REVOKE ALL ON DATABASE hindcast FROM PUBLIC;
GRANT CONNECT ON DATABASE hindcast TO hindcast_app;
